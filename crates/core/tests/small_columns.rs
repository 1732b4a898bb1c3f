//! Columns of small whole numbers deliver the same as columns in full width, wherever a number in the text is not
//! small.

use cntkio_core::chunk::{Chunk, NumberType, Numbers, Pool, Samples, Small, Values};
use cntkio_core::ctf::{self, Cut, Findings, Mode, Pass, Schema, Source, Stream};
use cntkio_core::pack::{self, Cell, Parts, Ragged, Selection, Table, Wanted, Whole};
use cntkio_core::text::{Text, in_memory};
use proptest::prelude::*;
use std::sync::Arc;

/// Sequences as text, one line for each sample; most values are small, and most samples of `tag` have one entry. With
/// `same`, most values are this number.
fn text(sequences: &[Vec<(u16, u32, u8)>], same: Option<u8>) -> Vec<u8> {
    let mut text = String::new();
    for (number, lines) in sequences.iter().enumerate() {
        for &(value, index, odd) in lines {
            let value = match odd {
                0 => format!("{value}.5"),
                1 => "-0".to_owned(),
                2 => format!("{}", 256 + u32::from(value)),
                3 => format!("-{value}"),
                _ => same.map_or((value % 256).to_string(), |same| same.to_string()),
            };
            let index = if odd == 4 { 65_530 + index % 1000 } else { index % 65_536 };
            let more = if odd == 5 { " 7:1 7:2" } else { "" };
            text += &format!("{number} |x {value} 3 {} |tag {index}:{value}{more}\n", index % 256);
        }
    }
    text.into_bytes()
}

fn schema(is_double: bool, is_compact: bool) -> Schema {
    let stream =
        |name: &str, is_sparse, dim| Stream { name: name.into(), is_sparse, dim, number: NumberType::float(is_double) };
    Schema { is_compact, ..Schema::of(vec![stream("x", false, 3), stream("tag", true, 70_000)]) }
}

fn parsed(text: &[u8], schema: &Schema, cut: Cut, pool: Option<&Arc<Pool>>) -> Chunk {
    let scan = ctf::scan(text, Mode::Ids, None).unwrap();
    let read = in_memory(text);
    let source = Source::File(Text { size: text.len(), read: &read });
    let (chunk, findings) = ctf::parse_chunk(source, &scan.extents(0, text.len()), schema, 0, true, cut, pool).unwrap();
    assert_eq!(findings, Findings::new(0, true));
    chunk
}

fn bits(ragged: &Ragged) -> String {
    format!("{ragged:?}") // unlike a comparison of floats, this distinguishes -0 from 0
}

proptest! {
    #[test]
    fn small_columns_deliver_what_plain_ones_do(
        sequences in prop::collection::vec(
            prop::collection::vec((any::<u16>(), any::<u32>(), prop_oneof![40 => Just(9u8), 1 => 0u8..6]), 1..5), 1..40),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 1..20),
        part in 20usize..400, num_parts in 1usize..6, is_double: bool, same in any::<Option<u8>>(),
    ) {
        let text = text(&sequences, same);
        let cut = Cut { piece: part * num_parts, part, gap: 0 };
        let pool = Arc::new(Pool::new(1 << 20));
        let plain = parsed(&text, &schema(is_double, false), cut, None);
        // The second chunk is made in the memory of the first.
        drop(parsed(&text, &schema(is_double, true), cut, Some(&pool)));
        let small = parsed(&text, &schema(is_double, true), cut, Some(&pool));
        let wanted = |stream, is_sparse| Wanted { stream, is_sparse, number: NumberType::float(is_double) };
        let streams = [wanted(0, false), wanted(1, true)];

        let chosen: Vec<u32> = picks.iter().map(|pick| pick.index(sequences.len()) as u32).collect();
        let chunk_of = vec![0; chosen.len()];
        let firsts = vec![0u32; chosen.len()];
        let counts: Vec<u32> = chosen.iter().map(|&number| sequences[number as usize].len() as u32).collect();
        for parts in [None, Some(Parts { firsts: &firsts, counts: &counts })] {
            let packed = |chunk: &Chunk| {
                let selection = Selection { chunk_of: &chunk_of, sequences: &chosen, parts };
                pack::gather_all(&[chunk], selection, &streams).unwrap().iter().map(bits).collect::<Vec<_>>()
            };
            prop_assert_eq!(packed(&small), packed(&plain));
        }

        let mut next = 0;
        let cells: Vec<Cell> = counts.iter().map(|&num_samples| {
            let length = num_samples as usize;
            next += length;
            Cell { first_sample: 0, num_samples, cell: next - length, length }
        }).collect();
        let spread = |chunk: &Chunk| {
            let selection = Selection { chunk_of: &chunk_of, sequences: &chosen, parts: None };
            // A table of the sparse stream's dimension would take long to make.
            format!("{:?}", pack::spread(&[chunk], selection, &cells, &[Table { stream: 0, dim: 3, number: NumberType::float(is_double) }], next).unwrap())
        };
        prop_assert_eq!(spread(&small), spread(&plain));

        let whole = |chunk: &Chunk| {
            let mut whole = Whole::new(&streams, 2 * sequences.len());
            (0..2).for_each(|_| whole.append(chunk).unwrap());
            whole.finish().iter().map(bits).collect::<Vec<_>>()
        };
        prop_assert_eq!(whole(&small), whole(&plain));
        let made_plain = pack::in_full_width(&small, None).unwrap();
        prop_assert!(made_plain.as_plain().is_some());
        prop_assert_eq!(whole(&made_plain), whole(&plain));
    }
}

/// Lines of sparse samples as text: a line has a seed, from which its entries follow, and a number that makes few lines
/// odd.
fn sparse_text(lines: &[(u64, u8)], is_short: bool) -> Vec<u8> {
    let mut text = String::new();
    for (number, &(seed, odd)) in lines.iter().enumerate() {
        let mut state = seed;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut entries = |least: u64, most: u64| {
            let count = least + random(most - least + 1);
            let entry = |at| {
                let index = if odd == 1 && at == 0 { 65_530 + random(12) } else { random(60_000) };
                let value = match odd {
                    2 => random(400).to_string(),
                    3 if at == 0 => "0.5".to_owned(),
                    4 if at == 0 => "-0".to_owned(),
                    _ if is_short => "1".to_owned(),
                    _ => random(10).to_string(),
                };
                format!("{index}:{value}")
            };
            (0..count).map(entry).collect::<Vec<_>>().join(" ")
        };
        let (a, b) = if is_short { (entries(1, 1), entries(1, 1)) } else { (entries(8, 30), entries(0, 9)) };
        // A line with two samples of each stream, one with its samples in the other order, one with an empty sample.
        let samples = match odd {
            5 => format!("|a {a} |a {a} |b {b} |b {b}"),
            6 => format!("|b {b} |a {a}"),
            7 => format!("|a {a} |b "),
            _ => format!("|a {a} |b {b}"),
        };
        // Several short lines are a sequence.
        text += &format!("{} {samples}\n", if is_short { number / 5 } else { number });
    }
    text.into_bytes()
}

proptest! {
    #[test]
    fn sparse_lines_become_small_as_plain_ones_do(
        lines in prop::collection::vec((any::<u64>(), prop_oneof![200 => Just(9u8), 1 => 1u8..8]), 1..400),
        part in 1_000usize..9_000, num_parts in 1usize..20, is_short: bool, is_cut: bool,
    ) {
        let mut text = sparse_text(&lines, is_short);
        if is_cut {
            // The last sample has no entry. This is a finding, unless the stream has an entry in this sequence.
            text.extend(format!("{} |a 7:1 |b ", if is_short { (lines.len() - 1) / 5 } else { lines.len() }).bytes());
        }
        let stream = |name: &str| Stream { name: name.into(), is_sparse: true, dim: 70_000, number: NumberType::F32 };
        let schema = |is_compact| Schema { is_compact, ..Schema::of(vec![stream("a"), stream("b")]) };
        let cut = Cut { piece: part * num_parts, part, gap: 0 };
        let scan = ctf::scan(&text, Mode::Ids, None).unwrap();
        let read = in_memory(&text);
        let chunk = |is_compact, pool| {
            let source = Source::File(Text { size: text.len(), read: &read });
            let extents = scan.extents(0, text.len());
            ctf::parse_chunk(source, &extents, &schema(is_compact), u64::MAX, false, cut, pool).unwrap()
        };
        let pool = Arc::new(Pool::new(1 << 20));
        drop(chunk(true, Some(&pool)));
        let (small, findings) = chunk(true, Some(&pool));
        let (plain, plain_findings) = chunk(false, None);
        prop_assert_eq!(findings, plain_findings);
        for column in small.blocks().iter().flat_map(|block| &block.columns) {
            prop_assert_eq!(column.check(column.sequence_offsets.len() - 1), Ok(()));
        }
        let whole = |chunk: &Chunk| {
            let wanted = [0, 1].map(|stream| Wanted { stream, is_sparse: true, number: NumberType::F32 });
            let mut whole = Whole::new(&wanted, chunk.num_sequences());
            whole.append(chunk).unwrap();
            whole.finish().iter().map(bits).collect::<Vec<_>>()
        };
        prop_assert_eq!(whole(&small), whole(&plain));
        let pass = |is_compact, pool| {
            let source = Text { size: text.len(), read: &read };
            let schema = schema(is_compact);
            let pass = Pass { text: source, mode: Mode::Ids, schema: &schema, part_size: part, pool, excluded: None };
            ctf::index_chunks(pass, &[0, text.len()], num_parts).unwrap().into_iter().next().flatten()
        };
        if let Some(((_, small), (_, plain))) = pass(true, Some(&pool)).zip(pass(false, None)) {
            prop_assert_eq!(whole(&small), whole(&plain));
        }
    }
}

fn forms(chunk: &Chunk) -> Vec<bool> {
    let columns = chunk.blocks().iter().flat_map(|block| &block.columns);
    columns.map(|column| matches!(column.samples, Samples::Small(_))).collect()
}

#[test]
fn one_value_that_is_not_small_makes_the_columns_of_its_piece_plain() {
    let line = |x: &str, index: u32| format!("|x {x} 0 255 |tag {index}:1\n");
    let small: Vec<u8> = (0..100).flat_map(|index| line("1", index).into_bytes()).collect();
    let schema = schema(false, true);
    let cut = Cut { piece: 1 << 20, part: 50, gap: 0 };
    let indexed = |text: &[u8], excluded: Option<u8>| {
        let read = in_memory(text);
        let source = Text { size: text.len(), read: &read };
        let pass = Pass { text: source, mode: Mode::Lines, schema: &schema, part_size: cut.part, pool: None, excluded };
        let all = ctf::index_chunks(pass, &[0, text.len()], 1).unwrap();
        all.into_iter().next().flatten()
    };
    let parse = |text: &[u8]| indexed(text, None).unwrap().1;
    assert!(indexed(&small, Some(b'\r')).is_some() && indexed(&small, Some(b'9')).is_none());
    let chunk = parse(&small);
    assert_eq!(forms(&chunk), [true, true]);
    // Three bytes and four: as floats and with indices of 32 bits, and where each sample's entries begin, it is 12 and
    // 12.
    assert!(chunk.num_bytes() < 100 * (3 + 3) + 1000);
    for (more, expected) in [
        (line("-0", 65_535), [false, true]),
        (line("1", 65_536), [true, false]),
        (line("0.5", 65_536), [false, false]),
        (line("256", 1), [false, true]),
    ] {
        let chunk = parse(&[&small[..], more.as_bytes(), &small].concat());
        assert_eq!(forms(&chunk), expected, "{more}");
    }
}

#[test]
fn a_value_that_all_entries_of_a_column_have_is_kept_once() {
    let schema = schema(false, true);
    let parse = |values: &[&str]| {
        let lines = values.iter().enumerate().map(|(id, value)| format!("{id} |x 1 1 1 |tag 9:{value}\n"));
        let pool = Arc::new(Pool::new(1 << 20));
        parsed(lines.collect::<String>().as_bytes(), &schema, Cut { piece: 1 << 20, part: 40, gap: 0 }, Some(&pool))
    };
    let kept = |chunk: &Chunk| match &chunk.blocks()[0].columns[1].samples {
        Samples::Small(Small { numbers: Numbers::Alike(value, _), .. }) => Some(vec![*value]),
        Samples::Small(Small { numbers: Numbers::Pairs(pairs), .. }) => {
            Some(pairs.iter().map(|pair| pair[2]).collect())
        }
        _ => None,
    };
    for (values, expected) in [
        (vec!["1"; 9], Some(vec![1])),
        (vec!["255"; 9], Some(vec![255])),
        (vec!["1"], Some(vec![1])),
        // The first part has a single line.
        (vec!["1", "2", "1"], Some(vec![1, 2, 1])),
        (vec!["1", "1", "1", "1", "1", "1", "3"], Some(vec![1, 1, 1, 1, 1, 1, 3])),
        // 0 and -0 are equal, but have other bits.
        (vec!["0"; 3], Some(vec![0; 3])),
        (vec!["7", "0"], Some(vec![7, 0])),
        (vec!["0", "0", "-0"], None),
        (vec!["1", "1", "1", "1", "1", "1", "0.5"], None),
    ] {
        let chunk = parse(&values);
        assert_eq!(kept(&chunk), expected, "{values:?}");
        let chunk_of = vec![0; values.len()];
        let sequences: Vec<u32> = (0..values.len() as u32).rev().collect();
        let selection = Selection { chunk_of: &chunk_of, sequences: &sequences, parts: None };
        let wanted = Wanted { stream: 1, is_sparse: true, number: NumberType::F32 };
        let gathered = pack::gather(&[&chunk], selection, wanted).unwrap();
        let expected: Vec<f32> = values.iter().rev().map(|value| value.parse().unwrap()).collect();
        assert_eq!(format!("{:?}", gathered.values), format!("{:?}", Values::F32(expected)));
    }
}

#[test]
fn a_sparse_table_is_spread_from_small_columns_as_from_plain_ones() {
    let text = b"0 |x 1 2 3 |tag 5:7 5:9 2:1\n0 |x 1 2 3 |tag 0:255\n1 |x 1 2 3 |tag 1:3\n";
    let cut = Cut { piece: 1 << 20, part: 1 << 20, gap: 0 };
    let spread = |is_compact| {
        let chunk = parsed(text, &schema(false, is_compact), cut, None);
        assert_eq!(forms(&chunk), [is_compact; 2]);
        let selection = Selection { chunk_of: &[0, 0], sequences: &[1, 0], parts: None };
        let cell = |num_samples: u32, cell| Cell { first_sample: 0, num_samples, cell, length: num_samples as usize };
        let table = Table { stream: 1, dim: 70_000, number: NumberType::F32 };
        let spread = pack::spread(&[&chunk], selection, &[cell(1, 0), cell(2, 1)], &[table], 3).unwrap();
        let Values::F32(values) = &spread[0] else { panic!("single precision") };
        values.clone()
    };
    let table = spread(true);
    assert_eq!((table[1], table[70_005], table[70_002], table[140_000]), (3.0, 9.0, 1.0, 255.0));
    assert_eq!(table, spread(false));
}
