//! Every kernel parses every text into the same columns and finds the same faults.

#[path = "../../simd/tests/random/mod.rs"]
mod random;

use cntkio_core::chunk::{Chunk, NumberType, Samples, Values};
use cntkio_core::ctf::{self, Extent, Findings, Mode, Pass, Schema, Stream};
use cntkio_core::text::{Text, in_memory};
use cntkio_simd::Kernel;
use random::{Random, rounds};

fn schema(is_double: bool) -> Schema {
    let stream = |name: &str, is_sparse, dim| Stream {
        name: name.into(),
        is_sparse,
        dim,
        number: NumberType::float(is_double && dim != 50),
    };
    Schema::of(vec![stream("S0", true, 1000), stream("tag", true, 50), stream("x", false, 3)])
}

/// Short lines that are mostly alike, with some wrong bytes.
fn short_lines(random: &mut Random) -> Vec<u8> {
    let mut text = vec![];
    let style = random.below(4);
    for sequence in 0..random.below(12) {
        // Some sequences have more lines than the shortcut keeps before it appends them.
        let most_lines = if random.below(40) == 0 { 200 } else { 6 };
        for line in 0..1 + random.below(most_lines) {
            if style != 0 {
                text.extend(format!("{}", sequence * random.one_of(&[1, 1, 1, 12_345_678])).bytes());
            }
            text.extend(random.one_of::<&[u8]>(&[b" ", b" ", b"", b"\t"]));
            text.extend(format!("|S0 {}:1", random.below(1010)).bytes());
            text.extend(random.one_of::<&[u8]>(&[b" ", b" ", b" ", b"", b"  ", b" 7:2 "]));
            text.extend(format!("|tag {}:{}", random.below(51), random.one_of(&["1", "1", "12", "0.5", ""])).bytes());
            if style == 2 && line == 0 {
                text.extend(random.one_of::<&[u8]>(&[b" |x 1 2 3", b" |S0 3:4", b" |# 1:1"]));
            }
            text.extend(random.one_of::<&[u8]>(&[b"\n", b"\n", b"\n", b"\r\n", b" \n"]));
        }
    }
    for _ in 0..random.below(3) {
        let Some(at) = text.len().checked_sub(1).map(|last| random.below(last + 1)) else { break };
        text[at] = random.one_of(b"0123 :|\n\r\t.-xS\x0b\xe9");
    }
    text
}

/// Short lines of samples of one entry, in sequences of some lines, with few faults.
fn one_hot_lines(random: &mut Random) -> Vec<u8> {
    let mut text = vec![];
    let (space, line_end) = (random.one_of(&[" ", " ", ""]), random.one_of(&["\n", "\n", " \n", "\r\n"]));
    let (step, is_odd) = (random.one_of(&[1, 1, 7, 12_345, 123_456_789]), random.below(3) == 0);
    for sequence in 0..random.below(40) {
        let most_lines = if random.below(40) == 0 { 200 } else { 6 };
        for line in 0..1 + random.below(most_lines) {
            let id = (sequence * step).to_string();
            let id = match random.below(if is_odd { 30 } else { 1 }) {
                1 => format!("0{id}"),
                2 => String::new(),
                3 => format!("{id}{id}"),
                _ => id,
            };
            let odd = if is_odd {
                random.one_of(&["", "", "", " |tag 1:1", " |S0 7:1", " |S0 2000:1", " |# a:1"])
            } else {
                ""
            };
            let tag =
                if line == 0 || random.below(3) > 0 { format!(" |tag {}:1", random.below(50)) } else { String::new() };
            text.extend(format!("{id}{space}|S0 {}:1{tag}{odd}{line_end}", random.below(1000)).bytes());
        }
    }
    text
}

/// Long lines of sparse samples that are mostly alike, in sequences of one or some lines.
fn sparse_lines(random: &mut Random) -> Vec<u8> {
    let mut text = vec![];
    let (has_ids, line_end) = (random.below(2) == 0, random.one_of::<&[u8]>(&[b"\n", b"\n", b"\r\n"]));
    let is_plain = random.below(3) > 0;
    for sequence in 0..1 + random.below(30) {
        for _ in 0..1 + random.below(3) {
            if has_ids {
                text.extend(format!("{sequence}{}", random.one_of(&[" ", "\t"])).bytes());
            }
            for (name, dim) in [("|src ", 50_000), ("|t ", 900)] {
                text.extend(name.bytes());
                for _ in 0..random.below(20) {
                    let value = if is_plain { "" } else { random.one_of(&["", "", "", "7", ".5", "e1"]) };
                    text.extend(format!("{}:{}{value} ", random.below(dim), random.below(10)).bytes());
                }
                if !is_plain && random.below(9) == 0 {
                    text.extend(random.one_of::<&[u8]>(&[b"|# 1:2 ", b"|src 3:1", b"900:1", b"|x 1:1 ", b"5 "]));
                }
            }
            text.extend(line_end);
        }
    }
    for _ in 0..random.below(3) {
        let at = random.below(text.len());
        text[at] = random.one_of(b"0123 :|\n\r\t.-xs\x0b\xe9");
    }
    text
}

fn sparse_schema(random: &mut Random) -> Schema {
    let stream = |name: &str, dim| Stream { name: name.into(), is_sparse: true, dim, number: NumberType::F32 };
    let mut streams = vec![stream("t", 900), stream("src", 50_000)];
    if random.below(2) == 0 {
        streams.reverse();
    }
    Schema { defining: random.one_of(&[None, None, Some(0)]), is_compact: random.below(2) == 0, ..Schema::of(streams) }
}

#[test]
fn kernels_agree_on_long_lines_of_sparse_samples() {
    let mut random = Random(13);
    for _ in 0..rounds(10_000) {
        let text = sparse_lines(&mut random);
        let schema = sparse_schema(&mut random);
        let mode = if text.first() == Some(&b'|') { Mode::Lines } else { Mode::Ids };
        let name = schema.defining.map(|stream| &schema.streams[stream].name[..]);
        let Ok(scan) = ctf::scan(&text, mode, name) else { continue };
        let mut sequences = scan.extents(0, text.len());
        if random.below(3) == 0 {
            sequences.retain(|_| random.below(8) > 0); // the text between is left out
        }
        if random.below(9) == 0 && !sequences.is_empty() {
            let wrong = random.below(sequences.len());
            sequences[wrong].length += 1;
        }
        kernels_agree(&text, &sequences, &schema);
    }
}

#[test]
fn lines_that_are_indexed_while_they_are_parsed_give_the_same_index_and_columns() {
    let mut random = Random(52);
    let mut num_whole = [0, 0];
    for _ in 0..2_000 {
        let mode = random.one_of(&[Mode::Lines, Mode::Ids]);
        let is_sparse = mode == Mode::Lines && random.below(2) == 0;
        let mut text = match mode {
            Mode::Lines if is_sparse => sparse_lines(&mut random),
            Mode::Lines => short_lines(&mut random),
            Mode::Ids => one_hot_lines(&mut random),
        };
        if random.below(4) == 0 {
            text.extend(random.one_of::<&[u8]>(&[b"\n", b"|# no sample\n", b"12", b"|src 1:1", b"|other 1\n"]));
        }
        let mut schema = if is_sparse { sparse_schema(&mut random) } else { schema(random.below(2) == 0) };
        if mode == Mode::Ids {
            schema = self::schema(false);
            schema.streams.truncate(2);
        }
        (schema.defining, schema.is_compact, schema.is_subset) = (None, false, random.below(2) == 0);
        let read = in_memory(&text);
        let source = Text { size: text.len(), read: &read };
        let part_size = random.one_of(&[1, 90, 1000, 1 << 20]);
        let pass = Pass { text: source, mode, schema: &schema, part_size, pool: None, excluded: None };
        let indexed = ctf::index_chunks(pass, &[0, text.len()], 1).unwrap().into_iter().flatten().next();
        let Ok(scan) = ctf::scan(&text, mode, None) else {
            assert!(indexed.is_none(), "{}", String::from_utf8_lossy(&text));
            continue;
        };
        let mut findings = Findings::new(0, true);
        let block = ctf::parse(&text, &scan.extents(0, text.len()), &schema, &mut findings);
        let is_whole = scan.head_lines == 0 && scan.starts.is_empty() == text.is_empty();
        let is_sound = is_whole && scan.hollow.is_empty() && findings.last_straw.is_none();
        let expected = is_sound.then(|| (vec![scan], Chunk::new(vec![block])));
        num_whole[usize::from(mode == Mode::Ids)] += usize::from(is_sound);
        assert!(indexed == expected, "{}", String::from_utf8_lossy(&text));
    }
    assert!(num_whole.iter().all(|num_whole| (100..900).contains(num_whole)), "{num_whole:?}");
}

fn kernels_agree(text: &[u8], sequences: &[Extent], schema: &Schema) {
    let parsed = |kernel: Kernel| {
        let mut findings = Findings::new(u64::MAX, false);
        (ctf::parse_with(kernel, text, sequences, schema, &mut findings), findings)
    };
    let expected = parsed(Kernel::named("scalar").unwrap());
    for kernel in Kernel::available() {
        assert_eq!(parsed(kernel), expected, "{} on {:?}", kernel.name(), String::from_utf8_lossy(text));
    }
}

/// Without a kernel, single precision has shortcuts that double precision lacks.
fn precisions_agree(text: &[u8], sequences: &[Extent], schema: &Schema) {
    let parsed = |is_double| {
        let streams = schema
            .streams
            .iter()
            .map(|stream| Stream { number: NumberType::float(is_double), ..stream.clone() })
            .collect();
        let mut findings = Findings::new(u64::MAX, false);
        let schema = Schema { streams, ..schema.clone() };
        let mut block = ctf::parse_with(Kernel::named("scalar").unwrap(), text, sequences, &schema, &mut findings);
        for column in &mut block.columns {
            if let Samples::Dense { values, .. } | Samples::Sparse { values, .. } = &mut column.samples
                && let Values::F64(doubles) = values
            {
                *values = Values::F32(doubles.iter().map(|&double| double as f32).collect());
            }
        }
        (block, findings)
    };
    assert_eq!(parsed(false), parsed(true), "{:?}", String::from_utf8_lossy(text));
}

#[test]
fn kernels_agree_on_short_lines() {
    let mut random = Random(11);
    for round in 0..rounds(30_000) {
        let text = short_lines(&mut random);
        let mode = if text.first() == Some(&b'|') { Mode::Lines } else { Mode::Ids };
        let schema = schema(round % 5 == 0);
        let Ok(scan) = ctf::scan(&text, mode, None) else { continue };
        kernels_agree(&text, &scan.extents(0, text.len()), &schema);
        precisions_agree(&text, &scan.extents(0, text.len()), &schema);
    }
}
