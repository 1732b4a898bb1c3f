//! Whichever large request for memory the system refuses, a reader or a writer ends in the right result or in an error
//! with a number of bytes, and the process continues.
//!
//! Requests below `LEAST_BYTES` are not refused: the standard library and rayon make some that cannot report a failure.
//! In the Python module, the allocator's reserve serves these.

use cntkio_core::chunk::{Chunk, Pool};
use cntkio_core::ctf::{self, Cut, Extent, Mode, Pass, Schema, Source, Stream};
use cntkio_core::htk::{self, ListRules};
use cntkio_core::keys;
use cntkio_core::lengths::Lengths;
use cntkio_core::memory::{self, OutOfMemory, or_out_of_memory};
use cntkio_core::mlf::{self, Rules, Unit};
use cntkio_core::text::Text;
use cntkio_core::timeline::{Partition, Randomization, Reader, Request, Table, Window};
use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};

const LEAST_BYTES: usize = 64 << 10;
/// The variable that makes a process the child of the test. Its value names the requests whose refusal ended the children
/// before it, one in each line.
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
    Stream { name: name.to_vec(), is_sparse, dim, is_double: false }
}

fn schema(is_compact: bool) -> Schema {
    Schema {
        streams: vec![stream(b"x", false, 2), stream(b"s", true, 1 << 20)],
        defining: None,
        has_words: false,
        is_compact,
        is_subset: false,
        keeps_findings: false,
        notes_unknown_names: false,
    }
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
    let read = |at: usize, buffer: &mut [u8]| {
        buffer.copy_from_slice(&bytes[at..at + buffer.len()]);
        Ok(())
    };
    let text = Text { size: bytes.len(), read: &read };
    for (mode, defining) in [(Mode::Lines, None), (Mode::Ids, None), (Mode::Ids, Some(&b"s"[..]))] {
        refuse_each(&format!("{name}, index"), || ctf::index(text, 0, 0..text.size, mode, defining, 1 << 18).unwrap());
    }
    let scan = ctf::scan(bytes, Mode::Ids, None).unwrap();
    let ends = scan.starts.iter().skip(1).copied().chain([text.size as u64]);
    let sizes: Vec<u64> = std::iter::zip(&scan.starts, ends).map(|(start, end)| end - start).collect();
    if sizes.len() > LEAST_BYTES / 4 {
        refuse_each("chunks", || {
            let mut starts = memory::collected(scan.starts.iter().copied());
            ctf::place(0, &mut starts, None, text.size as u64, 16, &mut None)
        });
        refuse_each(&format!("{name}, words"), || ctf::scan_words(bytes, None).unwrap());
    }
    let extents: Vec<Extent> = std::iter::zip(&scan.starts, &sizes)
        .zip(&scan.lines)
        .map(|((&start, &size), &length)| Extent { start: start as usize, end: start as usize + size as usize, length })
        .collect();
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
        let pass = Pass { text, mode: Mode::Ids, schema: &schema, part_size: 1 << 18, pool: Some(&pool) };
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
    let read = |at: usize, buffer: &mut [u8]| {
        buffer.copy_from_slice(&bytes[at..at + buffer.len()]);
        Ok(())
    };
    let rules = Rules { is_compatible: false, unit: Unit::Time, frame_period: 1e5, classes: None, dim: 2 };
    refuse_each("labels", || {
        let mut scan = mlf::Scan::new(Text { size: bytes.len(), read: &read }, &rules, 1 << 17);
        while scan.advance().unwrap() {}
        scan.finish()
    });
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
    };
    let random = Randomization { window: Window::Chunks(4), seed: 1 };
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

#[test]
fn a_refused_request_is_an_error_and_the_process_continues() {
    if std::env::var_os(CHILD).is_some() {
        texts("many lines", &text(30_000, 3));
        texts("long lines", &text(4, 60_000));
        lists_and_labels();
        timelines();
        return;
    }
    let name = "a_refused_request_is_an_error_and_the_process_continues";
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
