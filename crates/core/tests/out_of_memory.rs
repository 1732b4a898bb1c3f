//! Whichever large request for memory the system refuses, a reader or a writer ends in the right result or in an error
//! with a number of bytes, and the process continues.
//!
//! Requests below `LEAST_BYTES` are not refused: the standard library and rayon make some that cannot report a failure.
//! In the Python module, the allocator's reserve serves these.

use cntkio_compressed::{self as compressed, Kind, Packed, SpareDecoders, Stream as Decompressor};
use cntkio_core::cbf;
use cntkio_core::chunk::{
    Block, Bytes, Chunk, Column, Encoding, FrameStart, Frames, NumberType, Pool, Runs, Samples, Values,
};
use cntkio_core::convert;
use cntkio_core::ctf::{self, Cut, Extent, Mode, Pass, Schema, Source, Stream, svmlight};
use cntkio_core::htk::{self, ListRules};
use cntkio_core::kaldi::{self, Written};
use cntkio_core::keys;
use cntkio_core::lengths::Lengths;
use cntkio_core::memory::{self, OutOfMemory, or_out_of_memory};
use cntkio_core::mlf::{self, Rules, Unit};
use cntkio_core::pack::{self, Cell, Job, Parts, Selection, Sources, Table as Dense, Wanted, Whole};
use cntkio_core::text::{Text, in_memory};
use cntkio_core::timeline::{self, Limits, Load, Partition, Randomization, Reader, Request, Table, Window};
use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::sync::{Arc, OnceLock};

const LEAST_BYTES: usize = 64 << 10;
/// The variable that makes a process the child of the test. Its value names the requests whose refusal ended the
/// children before it, one in each line.
const CHILD: &str = "CNTKIO_TEST_CHILD";

struct Refusing;

/// Requests until the request that is refused; 0 or less: none is refused any more.
static UNTIL_REFUSED: AtomicIsize = AtomicIsize::new(0);

// SAFETY: the system's allocator does all the work; a refused request returns null.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= LEAST_BYTES && UNTIL_REFUSED.fetch_sub(1, Ordering::SeqCst) == 1 {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

/// Do `work` again and again; refuse its first request, then its second, until no request is left to refuse.
fn refuse_each<R: PartialEq>(name: &str, work: impl Fn() -> R) {
    let expected = work();
    for number in 1.. {
        let request = format!("{name}: request {number}");
        println!("{request}");
        if std::env::var(CHILD).is_ok_and(|deadly| deadly.lines().any(|line| line == request)) {
            continue;
        }
        UNTIL_REFUSED.store(number, Ordering::SeqCst);
        let done = or_out_of_memory(&work);
        let is_over = UNTIL_REFUSED.swap(0, Ordering::SeqCst) > 0;
        match done {
            Ok(result) => assert!(result == expected, "{name}: another result"),
            Err(OutOfMemory(num_bytes)) => assert!(num_bytes > 0 && !is_over, "{name}"),
        }
        if is_over {
            assert!(number > 1, "{name}: no large request");
            return;
        }
    }
}

fn stream(name: &[u8], is_sparse: bool, dim: usize) -> Stream {
    Stream { name: name.to_vec(), is_sparse, dim, number: NumberType::F32 }
}

fn schema(is_compact: bool) -> Schema {
    Schema { is_compact, ..Schema::of(vec![stream(b"x", false, 2), stream(b"s", true, 1 << 20)]) }
}

/// A text of many sequences of one line, or of few long lines.
fn text(num_lines: usize, num_entries: usize) -> Vec<u8> {
    let mut text = String::new();
    for line in 0..num_lines {
        write!(text, "{line} |x 0.5 {line} |s").unwrap();
        (0..num_entries).for_each(|entry| write!(text, " {}:{}", entry + 70_000, line % 7).unwrap());
        text.push('\n');
    }
    text.into_bytes()
}

/// Read a text in all ways.
fn texts(name: &str, bytes: &[u8]) {
    let read = in_memory(bytes);
    let text = Text { size: bytes.len(), read: &read };
    for (mode, defining) in [(Mode::Lines, None), (Mode::Ids, None), (Mode::Ids, Some(&b"s"[..]))] {
        refuse_each(&format!("{name}, index"), || ctf::index(text, 0, 0..text.size, mode, defining, 1 << 18).unwrap());
    }
    let scan = ctf::scan(bytes, Mode::Ids, None).unwrap();
    if scan.starts.len() > LEAST_BYTES / 4 {
        refuse_each("chunks", || {
            let mut starts = memory::collected(scan.starts.iter().copied());
            ctf::place(0, &mut starts, None, text.size as u64, 16, &mut None)
        });
        refuse_each(&format!("{name}, words"), || ctf::scan_words(bytes, None).unwrap());
    }
    let extents = scan.extents(0, text.size);
    for is_compact in [false, true] {
        let schema = schema(is_compact);
        let every_third: Vec<Extent> = extents.iter().copied().step_by(3).collect();
        for (source, extents) in
            [(Source::Memory(bytes), &extents), (Source::File(text), &extents), (Source::File(text), &every_third)]
        {
            let cut = Cut { piece: 1 << 20, part: 1 << 18, gap: 16 };
            refuse_each(&format!("{name}, parser"), || {
                let (chunk, findings) = ctf::parse_chunk(source, extents, &schema, 0, true, cut, None).unwrap();
                assert_eq!(findings.num_errors(), 0);
                chunk
            });
        }
        let pool = Arc::new(Pool::new(0));
        let pass =
            Pass { text, mode: Mode::Ids, schema: &schema, part_size: 1 << 18, pool: Some(&pool), excluded: None };
        refuse_each(&format!("{name}, one pass"), || {
            let indexed = ctf::index_chunks(pass, &[0, text.size], 2).unwrap();
            indexed.into_iter().map(|chunk| chunk.expect("a sound text")).collect::<Vec<(Vec<ctf::Scan>, Chunk)>>()
        });
    }
}

fn lists_and_labels() {
    let (mut list, mut labels) = (String::new(), String::from("#!MLF!#\n"));
    for utterance in 0..20_000 {
        writeln!(list, "utterance{utterance}=file{utterance}.mfc[0,1]").unwrap();
        writeln!(labels, "\"utterance{utterance}\"\n0 100000 a 0\n100000 200000 b 1\n.").unwrap();
    }
    let keys: Vec<u64> = (0..200_000).collect();
    refuse_each("keys", || keys::are_distinct(&keys));
    let rules = ListRules::default();
    refuse_each("list", || {
        let list = htk::scan_list(list.as_bytes(), &rules).unwrap();
        let (rows, width) = keys::padded(&list.keys, &list.key_ends);
        (keys::first_same(&rows, width), list)
    });
    let bytes = labels.as_bytes();
    let read = in_memory(bytes);
    let rules = Rules { is_compatible: false, unit: Unit::Time, frame_period: 1e5, classes: None, dim: 2 };
    refuse_each("labels", || {
        let mut scan = mlf::Scan::new(Text { size: bytes.len(), read: &read }, &rules, 1 << 17);
        while scan.advance().unwrap() {}
        scan.finish()
    });
}

/// Index, parse and write a text in the format svmlight.
fn svmlight_texts() {
    let lines = |num_lines: usize, num_features: usize| {
        let mut text = String::new();
        for line in 0..num_lines {
            write!(text, "{},1 qid:{}", line % 5, line / 2).unwrap();
            (1..=num_features).for_each(|feature| write!(text, " {feature}:{}.5", line % 7).unwrap());
            text.push_str(" # comment\n");
        }
        text.into_bytes()
    };
    let stream = |name: &[u8], is_sparse, dim| Stream { name: name.to_vec(), is_sparse, dim, number: NumberType::F32 };
    for (name, num_lines, dim) in [("svmlight, many lines", 30_000, 3), ("svmlight, long lines", 4, 60_000)] {
        let text = lines(num_lines, dim);
        let read = in_memory(&text);
        let source = Text { size: text.len(), read: &read };
        for mode in [Mode::Lines, Mode::Ids] {
            refuse_each(&format!("{name}, index"), || {
                svmlight::index(source, 0, 0..text.len(), mode, 1 << 20).unwrap()
            });
        }
        let mut start = 0;
        let extents: Vec<Extent> = text
            .split_inclusive(|&byte| byte == b'\n')
            .map(|line| {
                start += line.len();
                Extent { start: start - line.len(), end: start, length: 1 }
            })
            .collect();
        for has_queries in [false, true] {
            let query = Stream { number: NumberType::I64, ..stream(b"query", false, 1) };
            let mut streams = vec![stream(b"x", true, dim), stream(b"label", true, 5), query];
            streams.truncate(2 + usize::from(has_queries));
            let layout = svmlight::Layout { base: 1, has_queries, is_bounded: true };
            let schema = Schema { streams, svmlight: Some(layout), ..schema(false) };
            let parse = || {
                let cut = Cut { piece: 1 << 20, part: 1 << 18, gap: 16 };
                let source = Source::File(source);
                let (chunk, findings) = ctf::parse_chunk(source, &extents, &schema, 0, true, cut, None).unwrap();
                assert_eq!(findings.num_errors(), 0);
                chunk
            };
            refuse_each(&format!("{name}, parser"), parse);
            let chunk = parse();
            let plain = chunk.as_plain().unwrap();
            let query = has_queries.then_some(2);
            let columns = svmlight::Columns { features: 0, label: 1, query, base: 1 };
            refuse_each(&format!("{name}, writer"), || svmlight::write(&plain, &[], columns, 10_000).unwrap());
        }
    }
}

/// Write archives, find their objects, and read them; read lists.
fn archives() {
    for (number, chunk) in plain_chunks().iter().enumerate() {
        let plain = chunk.as_plain().unwrap();
        let one_hot = Samples::Sparse {
            dim: 9,
            sample_offsets: (0..=60_000).collect(),
            indices: (0..60_000).map(|sample| sample % 9).collect(),
            values: Values::F32(vec![1.0; 60_000]),
        };
        let columns = vec![Column { sequence_offsets: vec![0, 20_000, 60_000], samples: one_hot }];
        let classes = Chunk::new(vec![Block { num_sequences: 2, columns }]);
        let classes = classes.as_plain().unwrap();
        let (mut keys, mut key_ends) = (Vec::new(), Vec::new());
        for sequence in 0..plain.num_sequences() {
            keys.extend(format!("key{sequence}").bytes());
            key_ends.push(keys.len());
        }
        let (keys, width) = keys::padded(&keys, &key_ends);
        for is_text in [false, true] {
            let name = format!("archive {number}, text {is_text}");
            let write = |plain| kaldi::write(plain, &keys, width, 0, is_text).unwrap();
            for (plain, is_float) in [(&plain, true), (&classes, false)] {
                refuse_each(&format!("{name}, writer"), || write(plain));
                let Written { bytes, .. } = write(plain);
                let read = in_memory(&bytes);
                let text = Text { size: bytes.len(), read: &read };
                let scan = || kaldi::scan(text, 0, text.size).unwrap().0;
                if bytes.len() > 20 * LEAST_BYTES / 4 && plain.num_sequences() > 100 {
                    refuse_each(&format!("{name}, scan"), || {
                        let scan = scan();
                        (scan.keys, scan.key_ends, scan.offsets, scan.objects)
                    });
                    let offsets = scan().offsets;
                    refuse_each(&format!("{name}, headers"), || kaldi::objects(text, &offsets, text.size).unwrap().0);
                }
                let objects = scan().objects;
                let num_rows: usize = objects.iter().map(|object| object.rows as usize).sum();
                if !is_float {
                    refuse_each(&format!("{name}, whole numbers"), || {
                        let mut values = Vec::new();
                        memory::resize(&mut values, num_rows, 0);
                        assert!(kaldi::integers(text, &objects, &mut values).unwrap().is_none());
                        values
                    });
                    continue;
                }
                refuse_each(&format!("{name}, values"), || {
                    let wanted = objects.iter().map(|&object| kaldi::Wanted {
                        object,
                        first_row: 0,
                        num_rows: object.rows,
                        first_col: 0,
                    });
                    let wanted = memory::collected(wanted);
                    let mut values: Vec<f64> = Vec::new();
                    memory::resize(&mut values, 2 * num_rows, 0.0);
                    assert!(kaldi::decode(text, &wanted, 2, &mut values).unwrap().is_none());
                    let lengths = memory::collected(objects.iter().map(|object| object.rows));
                    kaldi::windows(&values, &lengths, 2, 1, 1)
                });
            }
        }
    }
    let (mut list, mut long) = (String::new(), String::from("key "));
    (0..20_000).for_each(|number| writeln!(list, "key{number} file{number}.ark:{number}[0:1]").unwrap());
    long.extend(std::iter::repeat_n('x', 100_000));
    for text in [list, long] {
        refuse_each("list of objects", || kaldi::scan_list(text.as_bytes()).unwrap());
        refuse_each("map", || kaldi::scan_map(text.as_bytes()).unwrap());
    }
}

/// Cut minibatches by budgets and into rows, and deal them to ranks.
fn budgets() {
    let lengths: Vec<u32> = (0..50_000).map(|number| 1 + number % 7).collect();
    let limits = Limits { samples: 9, ..Limits::only_longest(u32::MAX) };
    let balance = Some(timeline::Cost { linear: 0.0, square: 1.0 });
    let pool = |rows, buckets| timeline::Pool {
        size: 1 << 20,
        counts_sequences: true,
        rows,
        row_length: 9,
        buckets,
        balance: None,
        carries: false,
    };
    refuse_each("cut", || timeline::cut(&lengths, limits));
    let balanced = timeline::Pool { balance, ..pool(3, vec![]) };
    for pool in [pool(0, vec![]), pool(0, vec![2, 7]), pool(3, vec![]), balanced] {
        for keeps in [None, Some(1)] {
            refuse_each(&format!("pool of {} rows", pool.rows), || {
                timeline::batches(&lengths, limits, &pool, keeps, 1, &mut || true).unwrap()
            });
        }
    }
    refuse_each("cells of rows", || timeline::cells_in_rows(&lengths, 9));
    let bounds: Vec<usize> = (0..=50_000).step_by(5).collect();
    for load in [Load::Samples, Load::PaddedArea, Load::Cost(timeline::Cost { linear: 0.0, square: 1.0 })] {
        for num_ranks in [1, 2] {
            refuse_each("deal", || timeline::deal(&lengths, &bounds, num_ranks, 0, load));
        }
        refuse_each("deal of one minibatch", || timeline::deal(&lengths, &[0, 50_000], 2, 0, load));
    }
    refuse_each("deal of rows", || timeline::deal_rows(&lengths, &bounds, 2, 0));
    refuse_each("deal of slices", || timeline::deal_slices(&lengths, &bounds, 2, 0, 8));
}

fn timelines() {
    let lengths = vec![3u8; 100_000];
    let chunk_starts: Vec<i64> = (0..=100_000).step_by(10_000).collect();
    let table = Table { lengths: Lengths::Bytes(&lengths), chunk_starts: &chunk_starts };
    let partition = Partition { index: 0, count: 1 };
    let request = Request {
        partition,
        share: 1 << 20,
        passed: u64::MAX,
        crosses_sweeps: true,
        counts_sequences: false,
        is_global: false,
        limits: None,
    };
    let random = Randomization { window: Window::Chunks(4), seed: 1, is_keyed: false };
    for randomization in [None, Some(random)] {
        let read = |is_refused: bool| {
            let mut reader = Reader::new(table, randomization, u64::MAX);
            let mut once = || {
                let mut out = Vec::new();
                reader.read(table, request, &mut out, &mut || true).unwrap();
                out
            };
            // A reader whose read failed is where it was, and reads the same.
            let first = if is_refused { or_out_of_memory(&mut once).ok() } else { None };
            first.unwrap_or_else(once)
        };
        let expected = read(false);
        refuse_each("timeline", || assert!(read(true) == expected));
    }
}

/// The result, or the refusal as the parsers report it.
fn or_refused<R>(result: Result<R, pack::Error>) -> R {
    result.unwrap_or_else(|error| match error {
        pack::Error::TooLarge(num_bytes) => memory::refused(num_bytes),
        error => panic!("{error:?}"),
    })
}

/// Many sequences of one sample, dense and sparse, with `num_entries` entries; and few sequences of many samples.
fn plain_chunks() -> [Chunk; 2] {
    [(30_000, 1, 3), (3, 20_000, 2)].map(|(num_sequences, num_samples, num_entries): (usize, usize, usize)| {
        let all = num_sequences * num_samples;
        let offsets = |count: usize, step: usize| (0..=count).map(|at| (at * step) as u32).collect::<Vec<u32>>();
        let dense = Samples::Dense { dim: 2, values: Values::F32(vec![0.5; 2 * all]) };
        let sparse = Samples::Sparse {
            dim: 9,
            sample_offsets: offsets(all, num_entries),
            indices: (0..all * num_entries).map(|entry| (entry % num_entries) as i32).collect(),
            values: Values::F64(vec![0.25; all * num_entries]),
        };
        let column = |samples| Column { sequence_offsets: offsets(num_sequences, num_samples), samples };
        Chunk::new(vec![Block { num_sequences, columns: [dense, sparse].map(column).into() }])
    })
}

/// Writes the same sequences in both binary layouts, if the documented layout can hold them, and reads them again.
fn binaries() -> Vec<Chunk> {
    let selected = [(0, false), (1, true)].map(|(column, is_double)| cbf::Selected { column, is_double });
    let stream = |&(is_sparse, dim): &(bool, usize)| cbf::Stream {
        is_sparse,
        dim,
        is_double: is_sparse,
        becomes_double: is_sparse,
    };
    let streams = [(false, 2), (true, 9)].each_ref().map(stream);
    let mut stored = Vec::new();
    for (number, chunk) in plain_chunks().iter().enumerate() {
        let num_sequences = chunk.num_sequences();
        for is_documented in [false, true].into_iter().take(2 - number) {
            let name = format!("binary chunk {number}, documented layout {is_documented}");
            let written = [cbf::Written { chunk: chunk.as_plain().unwrap(), sequences: 0..num_sequences }];
            let (sizes, lengths) = cbf::sizes(&written, &selected, is_documented);
            if number == 0 {
                refuse_each(&format!("{name}, sizes"), || cbf::sizes(&written, &selected, is_documented));
            }
            let mut bytes = vec![0; sizes.iter().sum::<u64>() as usize + cbf::extra_size(1, is_documented)];
            if is_documented {
                cbf::write_documented(&written, &selected, &mut bytes).unwrap();
                refuse_each(&name, || {
                    let parsed =
                        cbf::parse_documented(&bytes, num_sequences, &streams, 1 << 40, 1 << 19, None).unwrap();
                    (parsed.chunk, parsed.lengths)
                });
                continue;
            }
            cbf::write(&written, &selected, &lengths, &mut bytes).unwrap();
            let bytes = Bytes::new(bytes);
            let every_second: Vec<u32> = (0..num_sequences as u32).step_by(2).collect();
            let parse = |own| cbf::parse(bytes.clone(), num_sequences, &streams, own).unwrap().chunk;
            if number == 0 {
                refuse_each(&name, || (parse(None), parse(Some(&every_second))));
            }
            stored.push(parse(None));
        }
    }
    stored
}

/// Frames and runs of as many sequences and samples as [`plain_chunks`] has.
fn speech_chunks() -> [Chunk; 2] {
    [(30_000, 1), (3, 20_000)].map(|(num_sequences, num_samples): (usize, usize)| {
        let all = num_sequences * num_samples;
        let offsets = |step: usize| (0..=num_sequences).map(|at| (at * step) as u32).collect::<Vec<u32>>();
        let start = |sequence| FrameStart { block: 0, encoding: 0, offset: 8 * sequence * num_samples };
        let frames = Samples::Frames(Frames {
            frame_dim: 2,
            left: 1,
            right: 0,
            is_broadcast: false,
            blocks: vec![Bytes::new(vec![0; 8 * all])],
            starts: (0..num_sequences).map(start).collect(),
            encodings: vec![Encoding { is_big_endian: true, scales: None }],
        });
        let runs = Samples::Runs(Runs {
            dim: 4,
            offsets: offsets(1),
            starts: vec![0; num_sequences],
            classes: vec![3; num_sequences],
            marks_starts: false,
            targets: None,
            each: OnceLock::new(),
        });
        let column = |samples| Column { sequence_offsets: offsets(num_samples), samples };
        Chunk::new(vec![Block { num_sequences, columns: [frames, runs].map(column).into() }])
    })
}

/// Pack the two streams of chunks of one kind in all layouts.
fn packing(name: &str, chunks: &[Chunk; 2], dims: [usize; 2], are_doubles: [bool; 2]) {
    let chunks = chunks.each_ref();
    let wanted =
        |stream: usize| Wanted { stream, is_sparse: stream == 1, number: NumberType::float(are_doubles[stream]) };
    let wanted = [wanted(0), wanted(1)];
    let num_sequences = chunks[0].num_sequences();
    let chunk_of = vec![0; num_sequences];
    let orders = [(0..num_sequences as u32).collect::<Vec<u32>>(), (0..num_sequences as u32).rev().collect()];
    for sequences in &orders {
        let selection = Selection { chunk_of: &chunk_of, sequences, parts: None };
        refuse_each(&format!("{name}, many sequences"), || or_refused(pack::gather_all(&chunks, selection, &wanted)));
        let ones = vec![1; num_sequences];
        let parts = Some(Parts { firsts: &chunk_of, counts: &ones });
        let selection = Selection { parts, ..selection };
        refuse_each(&format!("{name}, many parts"), || or_refused(pack::gather_all(&chunks, selection, &wanted)));
    }
    let long = Selection { chunk_of: &[1, 0, 1], sequences: &[2, 5, 0], parts: None };
    refuse_each(&format!("{name}, long sequences"), || or_refused(pack::gather_all(&chunks, long, &wanted)));
    let sources = or_refused(Sources::new(&chunks, &wanted));
    let jobs = [Job { sources: &sources, selection: long }; 4];
    refuse_each(&format!("{name}, in turn"), || {
        or_refused(pack::gather_in_turn(&jobs).collect::<Result<Vec<_>, pack::Error>>())
    });
    refuse_each(&format!("{name}, whole"), || {
        let mut whole = Whole::new(&wanted, 2 * num_sequences);
        chunks.iter().for_each(|chunk| or_refused(whole.append(chunk)));
        whole.finish()
    });
    refuse_each(&format!("{name}, in full width"), || {
        let own = or_refused(pack::in_full_width(chunks[0], Some(&orders[0])));
        (own, chunks.map(|chunk| or_refused(pack::in_full_width(chunk, None))))
    });
    let table = |stream: usize| Dense { stream, dim: dims[stream], number: NumberType::float(are_doubles[stream]) };
    let cell = |cell| Cell { first_sample: 0, num_samples: 1, cell, length: 1 };
    let cells: Vec<Cell> = (0..num_sequences).map(cell).collect();
    let selection = Selection { chunk_of: &chunk_of, sequences: &orders[0], parts: None };
    refuse_each(&format!("{name}, cells"), || {
        or_refused(pack::spread(&chunks, selection, &cells, &[table(0), table(1)], num_sequences))
    });
    refuse_each(&format!("{name}, lengths"), || chunks.map(|chunk| (chunk.lengths(0), chunk.as_plain().is_some())));
}

fn padding() {
    let values = vec![1.5f64; 60_000];
    refuse_each("padding", || or_refused(pack::pad(&values, &[0, 20_000, 30_000], 20_000, 2)));
}

/// Write text, from chunks and from other texts, and look at text.
fn writers() {
    for (number, chunk) in plain_chunks().iter().enumerate() {
        let (plain, keys) = (chunk.as_plain().unwrap(), (0..chunk.num_sequences() as u64).collect::<Vec<_>>());
        refuse_each(&format!("text of chunk {number}"), || {
            ctf::write(&plain, 0, &keys, &[(0, b"x", false), (1, b"s", false)], 10_000).unwrap()
        });
    }
    let mut words = String::new();
    (0..10_000).for_each(|word| writeln!(words, "word{word}").unwrap());
    refuse_each("dictionary", || convert::Dictionary::new(&words).unwrap());
    let dictionary = convert::Dictionary::new(&words).unwrap();
    for line in [&words, &words.replace('\n', " ")] {
        let style = convert::TokenStyle { names: &[b"x"], unknown: None, is_annotated: true };
        refuse_each("tokens", || convert::tokens(line.as_bytes(), 0, &[&dictionary], style).unwrap());
    }
    for (lines, count) in [("1 2\n".repeat(30_000), 2), ("1 ".repeat(50_000), 50_000)] {
        let numbers = || convert::numbers(lines.as_bytes(), (0, count), convert::Labels::None, None).unwrap();
        refuse_each("numbers", numbers);
    }
    let names: String = (0..5_000).map(|name| format!("|name{name} 1")).collect();
    refuse_each("inference", || ctf::infer(names.as_bytes()).unwrap());
}

fn zeros(count: usize) -> Vec<u8> {
    memory::collected(std::iter::repeat_n(0, count))
}

/// Decompress a text from its beginning and from access points on, and compress it.
fn compressed_texts() {
    let text = text(20_000, 3);
    refuse_each("compression", || compressed::zstd_frame(&text, 1).unwrap());
    let frames: Vec<u8> = text.chunks(1 << 18).flat_map(|part| compressed::zstd_frame(part, 1).unwrap()).collect();
    for (kind, packed) in [(Kind::Zstd, &frames), (Kind::Gzip, &stored_gzip(&text))] {
        let name = format!("{kind:?}");
        let read = in_memory(packed);
        let stream = || {
            let mut stream = Decompressor::new(kind, 1 << 18, None).unwrap();
            let (mut out, mut at, mut done) = (zeros(text.len()), 0, 0);
            while at < packed.len() {
                let (read, written) = stream.feed(&packed[at..], &mut out[done..]).unwrap();
                (at, done) = (at + read, done + written);
            }
            assert!(out == text);
            stream
        };
        refuse_each(&format!("{name}, all in order"), || stream().points.window_ends);
        let points = stream().points;
        let end = [text.len() as u64, 16 * packed.len() as u64 + 8];
        let texts = [&points.texts[..], &end[..1]].concat();
        let places = [&points.places[..], &end[1..]].concat();
        let window_bounds = [&[0], &points.window_ends[..]].concat();
        refuse_each(&format!("{name}, segments"), || {
            let spare = SpareDecoders::new(4);
            let packed = Packed {
                kind,
                read: &read,
                texts: &texts,
                places: &places,
                window_bounds: &window_bounds,
                windows: &points.windows,
                spare: &spare,
                sums: None,
            };
            let mut out = zeros(text.len() - 300_000);
            compressed::decompress(packed, 300_000, &mut out).unwrap();
            out
        });
    }
}

/// A gzip of stored blocks, each with all the bytes that a block can have.
fn stored_gzip(text: &[u8]) -> Vec<u8> {
    let mut packed = vec![31, 139, 8, 0, 0, 0, 0, 0, 0, 255];
    let mut blocks = text.chunks(65_535).peekable();
    while let Some(block) = blocks.next() {
        let size = block.len() as u16;
        packed.push(u8::from(blocks.peek().is_none()));
        packed.extend([size.to_le_bytes(), (!size).to_le_bytes()].concat());
        packed.extend(block);
    }
    let sum = text.iter().fold(!0u32, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| sum >> 1 ^ if sum & 1 == 1 { 0xEDB8_8320 } else { 0 })
    });
    packed.extend([(!sum).to_le_bytes(), (text.len() as u32).to_le_bytes()].concat());
    packed
}

#[test]
fn a_text_of_many_lines_ends_in_a_result_or_an_error() {
    in_a_child("a_text_of_many_lines_ends_in_a_result_or_an_error", || texts("many lines", &text(30_000, 3)));
}

#[test]
fn a_text_of_words_ends_in_a_result_or_an_error() {
    in_a_child("a_text_of_words_ends_in_a_result_or_an_error", || {
        let text = text(9000, 1);
        let scan = ctf::scan(&text, Mode::Lines, None).unwrap();
        let extents = scan.extents(0, text.len());
        let cut = Cut { piece: 1 << 20, part: 1 << 18, gap: 16 };
        refuse_each("words", || {
            ctf::parse_chunk(Source::Memory(&text), &extents, &schema(false), 0, true, cut, None).unwrap()
        });
    });
}

#[test]
fn a_refused_request_is_an_error_and_the_process_continues() {
    in_a_child("a_refused_request_is_an_error_and_the_process_continues", || {
        budgets();
        archives();
        svmlight_texts();
        texts("long lines", &text(4, 60_000));
        lists_and_labels();
        timelines();
        packing("plain", &plain_chunks(), [2, 9], [false, true]);
        packing("stored", &binaries().try_into().unwrap(), [2, 9], [false, true]);
        packing("speech", &speech_chunks(), [4, 4], [true, false]);
        padding();
        writers();
        compressed_texts();
    });
}

/// Do `work` in a child process of the test of this name, and again without the requests that end the child, to name
/// them all.
fn in_a_child(name: &str, work: fn()) {
    if std::env::var_os(CHILD).is_some() {
        return work();
    }
    let mut deadly: Vec<String> = Vec::new();
    let mut reports = String::new();
    loop {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let child =
            child.args([name, "--exact", "--nocapture"]).env(CHILD, deadly.join("\n")).env("RUST_BACKTRACE", "1");
        let ended = child.output().unwrap();
        if ended.status.success() {
            break;
        }
        let (printed, complaints) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
        let request = printed.lines().rfind(|line| line.contains(": request ")).unwrap_or_default();
        let places = complaints.lines().filter(|line| line.contains("crates/") || line.contains("./src/"));
        write!(reports, "{request}\n{}\n", places.take(4).collect::<Vec<_>>().join("\n")).unwrap();
        let is_new = !request.is_empty() && !deadly.iter().any(|other| other == request);
        assert!(is_new && deadly.len() < 200, "{reports}\n{complaints}");
        deadly.push(request.to_owned());
    }
    assert!(deadly.is_empty(), "{reports}");
}
