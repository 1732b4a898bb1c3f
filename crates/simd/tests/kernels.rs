//! Comparison of every kernel with a slow, obvious implementation of the rule in the crate's documentation, on plain,
//! random and hostile text.

mod random;

use cntkio_simd::{Kernel, Pair, SparseColumn, SparseEntries, SparseForm};
use random::{Random, rounds};
use std::mem::MaybeUninit;

fn is_blank(byte: Option<&u8>) -> bool {
    matches!(byte, Some(b' ' | b'\t'))
}

fn ends_sample(byte: Option<&u8>) -> bool {
    matches!(byte, Some(b'|' | b'\n' | b'\r'))
}

fn digits_end(bytes: &[u8], start: usize) -> usize {
    start + bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// End and value of the number without an exponent at `start`.
fn plain_number(bytes: &[u8], start: usize) -> Option<(usize, f32)> {
    let first = start + usize::from(matches!(bytes.get(start), Some(b'+' | b'-')));
    let mut end = digits_end(bytes, first);
    if end == first {
        return None;
    }
    if bytes.get(end) == Some(&b'.') {
        end = digits_end(bytes, end + 1);
    }
    Some((end, std::str::from_utf8(&bytes[start..end]).unwrap().parse().unwrap()))
}

/// All numbers that a dense kernel may consume: (end, value).
fn dense_reference(bytes: &[u8], mut at: usize) -> Vec<(usize, f32)> {
    let mut numbers = vec![];
    loop {
        while is_blank(bytes.get(at)) {
            at += 1;
        }
        let Some((end, value)) = plain_number(bytes, at) else { return numbers };
        let next_is_signed =
            matches!(bytes.get(end), Some(b'+' | b'-')) && bytes.get(end + 1).is_some_and(u8::is_ascii_digit);
        if !(is_blank(bytes.get(end)) || ends_sample(bytes.get(end)) || next_is_signed) {
            return numbers;
        }
        numbers.push((end, value));
        at = end;
    }
}

/// All entries that a sparse kernel may consume: (end, index, value).
fn sparse_reference(bytes: &[u8], mut at: usize, dim: u32) -> Vec<(usize, i32, f32)> {
    let mut entries = vec![];
    loop {
        while is_blank(bytes.get(at)) {
            at += 1;
        }
        let colon = digits_end(bytes, at);
        let index = std::str::from_utf8(&bytes[at..colon]).unwrap().parse::<u32>();
        let Some(index) = index.ok().filter(|index| *index < dim && bytes.get(colon) == Some(&b':')) else {
            return entries;
        };
        let Some((end, value)) = plain_number(bytes, colon + 1) else { return entries };
        if !(is_blank(bytes.get(end)) || ends_sample(bytes.get(end))) {
            return entries;
        }
        entries.push((end, index as i32, value));
        at = end;
    }
}

fn shown(bytes: &[u8], at: usize) -> String {
    format!("{:?} from {at}", String::from_utf8_lossy(bytes))
}

/// Run a dense kernel and compare its values with the reference; returns their number.
fn check_dense(kernel: Kernel, bytes: &[u8], at: usize, limit: usize) -> usize {
    let mut values = vec![7.5];
    let stop = kernel.dense_f32(bytes, at, limit, &mut values);
    let reference = dense_reference(bytes, at);
    let what = format!("{} on {}, limit {limit}: {values:?} up to {stop}", kernel.name(), shown(bytes, at));
    let num_consumed = values.len() - 1;
    assert!(values[0] == 7.5 && num_consumed <= limit && num_consumed <= reference.len(), "{what}");
    let end = if num_consumed == 0 { at } else { reference[num_consumed - 1].0 };
    for (value, (_, expected)) in values[1..].iter().zip(&reference) {
        assert_eq!(value.to_bits(), expected.to_bits(), "{what}");
    }
    assert!(end <= stop && bytes[end..stop].iter().all(|byte| is_blank(Some(byte))), "{what}");
    num_consumed
}

/// Run a sparse kernel and compare its entries with the reference; returns their number.
fn check_sparse(kernel: Kernel, bytes: &[u8], at: usize, dim: u32) -> usize {
    let (mut indices, mut values) = (vec![-7], vec![7.5]);
    let stop = kernel.sparse_f32(bytes, at, dim, &mut indices, &mut values);
    let reference = sparse_reference(bytes, at, dim);
    let name = kernel.name();
    let what = format!("{name} on {}, dim {dim}: {indices:?} {values:?} up to {stop}", shown(bytes, at));
    let num_consumed = values.len() - 1;
    assert!(indices.len() == values.len() && num_consumed <= reference.len(), "{what}");
    assert!(indices[0] == -7 && values[0] == 7.5, "{what}");
    let end = if num_consumed == 0 { at } else { reference[num_consumed - 1].0 };
    for ((index, value), (_, expected_index, expected)) in indices[1..].iter().zip(&values[1..]).zip(&reference) {
        assert_eq!((*index, value.to_bits()), (*expected_index, expected.to_bits()), "{what}");
    }
    assert!(end <= stop && bytes[end..stop].iter().all(|byte| is_blank(Some(byte))), "{what}");
    num_consumed
}

/// Common form of lines of sparse samples.
struct Shape {
    has_id: bool,
    line_end: &'static [u8],
    /// Column, name and dimension of each stream.
    streams: Vec<(usize, &'static [u8], u32)>,
}

fn shape(random: &mut Random) -> Shape {
    let streams: [&[(usize, &[u8], u32)]; 4] = [
        &[(0, b"src", 50_000), (1, b"tgt", 900)],
        &[(1, b"s", 100_000_000), (0, b"a name of 12", 2_000_000_000), (2, b"tt", 4)],
        &[(0, b"x", 70)],
        &[(1, b"S1", u32::MAX), (0, b"S0", 1_000)],
    ];
    Shape {
        has_id: random.below(2) == 1,
        line_end: random.one_of(&[b"\n", b"\n", b"\r\n"]),
        streams: random.one_of(&streams).to_vec(),
    }
}

fn sparse_lines(random: &mut Random, shape: &Shape, length: usize) -> Vec<u8> {
    let mut text = vec![];
    let (is_plain, most_entries) = (random.below(3) > 0, random.one_of(&[1, 6, 25]));
    while text.len() < length {
        if shape.has_id {
            text.extend(random.one_of(&["7", "7", "0", "12345678901"]).bytes());
            text.extend(random.one_of::<&[u8]>(&[b" ", b"\t", b"", b"  "]));
        }
        for (position, (_, name, dim)) in shape.streams.iter().enumerate() {
            let name = std::str::from_utf8(name).unwrap();
            text.extend(
                format!("{}|{name} ", if position == 0 { "" } else { random.one_of(&[" ", "", "\t"]) }).bytes(),
            );
            for _ in 0..random.below(most_entries + 1) {
                let largest = 10u32.pow(1 + random.below(9) as u32).min(if is_plain { *dim } else { u32::MAX });
                let value = if is_plain { "" } else { random.one_of(&["", "", "0", ".5", "e1", "123.25", ".", "-"]) };
                let space = if is_plain { " " } else { random.one_of(&[" ", " ", "  ", "\t"]) };
                text.extend(format!("{}:{}{value}{space}", random.below(largest as usize), random.below(10)).bytes());
            }
            if random.below(2) == 0 {
                text.pop(); // a blank before the next pipe, or after the name
            }
        }
        text.extend(shape.line_end);
    }
    text.truncate(length);
    if length > 0 && random.below(4) == 0 {
        let at = random.below(length);
        text[at] = random.one_of(b"0:|. \t\n\rx-\x8a");
    }
    text
}

/// End of a line, and the entries of each column.
type SparseLineReference = (usize, Vec<Vec<(i32, f32)>>);

/// The line at `at`, if it has this shape.
fn sparse_line_reference(bytes: &[u8], mut at: usize, shape: &Shape) -> Option<SparseLineReference> {
    let skip_blanks = |at: usize| at + bytes[at..].iter().take_while(|byte| is_blank(Some(byte))).count();
    if shape.has_id {
        let id_end = digits_end(bytes, at);
        if id_end == at {
            return None;
        }
        at = skip_blanks(id_end);
    }
    let mut columns = vec![vec![]; shape.streams.len()];
    for &(column, name, dim) in &shape.streams {
        let name = [b"|", name, b" "].concat();
        if !bytes[at..].starts_with(&name) {
            return None;
        }
        at += name.len();
        for (end, index, value) in sparse_reference(bytes, at, dim.min(1 << 31)) {
            columns[column].push((index, value));
            at = end;
        }
        at = skip_blanks(at);
    }
    bytes[at..].starts_with(shape.line_end).then_some((at + shape.line_end.len(), columns))
}

/// Compare the lines that a kernel consumes with the reference; returns the end of the last line.
fn check_sparse_lines(kernel: Kernel, bytes: &[u8], at: usize, end: usize, shape: &Shape) -> usize {
    let Some(form) = SparseForm::new(shape.has_id, shape.line_end, &shape.streams) else { return at };
    let mut arrays = vec![(vec![0, 1], vec![-7], vec![7.5]); shape.streams.len()];
    let as_column = |(sample_offsets, entries)| SparseColumn { sample_offsets, entries };
    let wide = arrays.iter_mut().map(|(offsets, indices, values)| (offsets, SparseEntries::Wide(indices, values)));
    let mut columns: Vec<SparseColumn> = wide.map(as_column).collect();
    let mut line_ends = vec![3];
    kernel.sparse_lines(bytes, at, end, &form, &mut columns, &mut line_ends);
    let what = format!("{} on {} to {end}: {line_ends:?} {arrays:?}", kernel.name(), shown(bytes, at));
    let mut expected = vec![(vec![0, 1], vec![-7], vec![7.5]); shape.streams.len()];
    let mut stop = at;
    assert_eq!(line_ends[0], 3, "{what}");
    for &line_end in &line_ends[1..] {
        let (expected_end, columns) = sparse_line_reference(bytes, stop, shape).expect(&what);
        for ((offsets, indices, values), entries) in expected.iter_mut().zip(columns) {
            indices.extend(entries.iter().map(|(index, _)| *index));
            values.extend(entries.iter().map(|(_, value)| *value));
            offsets.push(indices.len() as u32);
        }
        stop = expected_end;
        assert_eq!(line_end, stop, "{what}");
    }
    assert!(stop == at || stop <= end, "{what}");
    assert_eq!(arrays, expected, "{what}");
    check_sparse_pairs(kernel, bytes, [at, end], form, &expected, &line_ends);
    stop
}

/// Check that a kernel consumes the same lines as pairs as in full width, up to the first line with an entry that a pair
/// cannot hold.
fn check_sparse_pairs(
    kernel: Kernel,
    bytes: &[u8],
    [at, end]: [usize; 2],
    form: SparseForm,
    wide: &[(Vec<u32>, Vec<i32>, Vec<f32>)],
    wide_ends: &[usize],
) {
    let pair = |(&index, &value): (&i32, &f32)| -> Option<Pair> {
        let ([low, high], small) = (u16::try_from(index).ok()?.to_le_bytes(), value as u8);
        (f32::from(small).to_bits() == value.to_bits()).then_some([low, high, small])
    };
    let entries = |(offsets, indices, values): &(Vec<u32>, Vec<i32>, Vec<f32>), line: usize| {
        let range = offsets[line + 1] as usize..offsets[line + 2] as usize;
        indices[range.clone()].iter().zip(&values[range]).map(pair).collect::<Option<Vec<Pair>>>()
    };
    let is_of_pairs = |&line: &usize| wide.iter().all(|column| entries(column, line).is_some());
    let num_lines = (0..wide_ends.len() - 1).take_while(is_of_pairs).count();
    let mut arrays = vec![(vec![0, 1], vec![[7, 7, 7]]); wide.len()];
    let columns = arrays
        .iter_mut()
        .map(|(sample_offsets, pairs)| SparseColumn { sample_offsets, entries: SparseEntries::Pairs(pairs) });
    let mut line_ends = vec![3];
    kernel.sparse_lines(bytes, at, end, &form.of_pairs(), &mut columns.collect::<Vec<_>>(), &mut line_ends);
    let what = format!("{} on {} to {end}: {line_ends:?}", kernel.name(), shown(bytes, at));
    assert_eq!(line_ends, wide_ends[..=num_lines], "{what}");
    for (column, (sample_offsets, pairs)) in wide.iter().zip(&arrays) {
        assert_eq!(*sample_offsets, column.0[..num_lines + 2], "{what}");
        let expected: Vec<Pair> = (0..num_lines).filter_map(|line| entries(column, line)).flatten().collect();
        assert_eq!(pairs[1..], expected, "{what}");
    }
}

fn plain_text(random: &mut Random, is_sparse: bool, max_digits: usize) -> Vec<u8> {
    let mut text = vec![];
    let style = random.below(4);
    for _ in 0..random.below(90) {
        text.extend(random.one_of::<&[u8]>(&[b" ", b" ", b" ", b"\t", b"  "]));
        if is_sparse {
            let largest = 10usize.pow(1 + random.below(5) as u32);
            text.extend(format!("{}:", random.below(largest)).bytes());
        }
        if style > 1 {
            text.extend(random.one_of::<&[u8]>(&[b"", b"-", b"+"]));
        }
        let whole = 1 + random.below(if style == 0 { 1 } else { max_digits / 2 });
        text.extend((0..whole).map(|_| b'0' + random.below(10) as u8));
        if style == 3 {
            text.push(b'.');
            text.extend((0..random.below(max_digits - whole + 1)).map(|_| b'0' + random.below(10) as u8));
        }
    }
    text.extend(random.one_of::<&[u8]>(&[b"|", b" |", b"\n", b"\r\n", b" \n"]));
    text
}

fn hostile_text(random: &mut Random, length: usize) -> Vec<u8> {
    let often = b"0123456789     ::..--++|\n\r\te";
    let plain = random.below(3);
    let one = |random: &mut Random| match random.below(40) {
        0 => random.below(256) as u8,
        1..=9 => often[random.below(often.len())],
        _ if plain == 0 => random.one_of(b"0123456789 "),
        _ if plain == 1 => random.one_of(b"0123456789 .-"),
        _ => random.one_of(b"0123456789 :"),
    };
    (0..length).map(|_| one(random)).collect()
}

#[test]
fn consumes_plain_dense_samples_to_the_end() {
    let mut random = Random(1);
    for _ in 0..rounds(20_000) {
        let text = plain_text(&mut random, false, 8);
        let expected = dense_reference(&text, 0);
        for kernel in Kernel::available() {
            let num_consumed = check_dense(kernel, &text, 0, 1000);
            // Numbers of eight digits are near the middle of two float32 numbers only if they are whole and above 2^24.
            let is_certain = expected.iter().all(|(_, value)| value.abs() < 16_777_216.0);
            assert!(
                num_consumed == expected.len() || !is_certain,
                "{} took {num_consumed} of {}",
                kernel.name(),
                shown(&text, 0)
            );
        }
    }
}

#[test]
fn consumes_plain_sparse_samples_to_the_end() {
    let mut random = Random(2);
    for _ in 0..rounds(20_000) {
        let text = plain_text(&mut random, true, 7);
        let expected = sparse_reference(&text, 0, 100_000);
        for kernel in Kernel::available() {
            let num_consumed = check_sparse(kernel, &text, 0, 100_000);
            assert_eq!(num_consumed, expected.len(), "{} on {}", kernel.name(), shown(&text, 0));
        }
    }
}

#[test]
fn consumes_samples_of_one_entry() {
    let rest = " 1:2 3:4 5:6".repeat(20);
    for kernel in Kernel::available() {
        for entry in ["0:1", "49:7", "9999999:0", "1:12", "7:2.5", "3:-1"] {
            for (before, after) in [(" ", "|"), (" ", " |"), ("\t", "\n"), (" ", "\t\r\n"), ("", "|"), ("  ", "  |")] {
                let text = format!("|name{before}{entry}{after}name{rest}");
                assert_eq!(check_sparse(kernel, text.as_bytes(), 5, 10_000_000), 1, "{} {text:?}", kernel.name());
            }
        }
        // An index that is too large, and text that only resembles an entry.
        for entry in
            ["10000000:1", "123456789:1", "4294967297:1", ":1", "1", "1:", "1:x", "x:1", "1;1", "1:1:1", "1:1x"]
        {
            for after in ["|", " |", "\n", " \n"] {
                let text = format!("|name {entry}{after}name{rest}");
                assert_eq!(check_sparse(kernel, text.as_bytes(), 5, 10_000_000), 0, "{} {text:?}", kernel.name());
            }
        }
    }
}

#[test]
fn consumes_only_certain_numbers_of_hostile_text() {
    let mut random = Random(3);
    for round in 0..rounds(60_000) {
        let text = hostile_text(&mut random, round % 201);
        let at = random.below(text.len() + 1).min(random.below(8));
        let (limit, dim) = (random.one_of(&[0, 1, 3, 10, 1000]), random.one_of(&[0, 1, 50, 100_000, u32::MAX]));
        for kernel in Kernel::available() {
            check_dense(kernel, &text, at, limit);
            check_sparse(kernel, &text, at, dim);
        }
    }
}

#[test]
fn results_do_not_depend_on_alignment_or_length() {
    let mut random = Random(4);
    for is_sparse in [false, true] {
        for alignment in 0..64 {
            let mut text = vec![b'5'; alignment];
            while text.len() < alignment + 200 {
                text.extend(plain_text(&mut random, is_sparse, 8));
            }
            for length in 0..=200 {
                let slice = &text[alignment..alignment + length];
                for kernel in Kernel::available() {
                    check_dense(kernel, slice, 0, 1000);
                    check_sparse(kernel, slice, 0, 100_000);
                }
            }
        }
    }
}

#[test]
fn sparse_lines_do_not_depend_on_alignment_or_length() {
    let mut random = Random(12);
    for alignment in 0..64 {
        let shape = shape(&mut random);
        let mut text = vec![b'5'; alignment];
        text.extend(sparse_lines(&mut random, &shape, 400));
        for length in 0..=400 {
            let slice = &text[alignment..alignment + length];
            for kernel in Kernel::available() {
                check_sparse_lines(kernel, slice, 0, length, &shape);
            }
        }
    }
}

#[test]
fn rounds_long_numbers_and_numbers_near_a_middle_once() {
    let mut random = Random(5);
    for _ in 0..rounds(30_000) {
        let bits = random.below(1 << 31) as u32 % 0x0800_0000 + 0x3c00_0000;
        let (low, high) = (f64::from(f32::from_bits(bits)), f64::from(f32::from_bits(bits + 1)));
        let middle = (low + high) / 2.0;
        let positions = random.below(19);
        let text = format!(" {middle:.positions$} {low:.positions$} -{middle} {high} 1|");
        let text = format!("{text}{}", "0".repeat(64));
        for kernel in Kernel::available() {
            let mut at = 0;
            while is_blank(text.as_bytes().get(at)) || text.as_bytes()[at] != b'|' {
                check_dense(kernel, text.as_bytes(), at, 1);
                at = dense_reference(text.as_bytes(), at)[0].0;
            }
            check_dense(kernel, text.as_bytes(), 0, 100);
        }
    }
}

#[test]
fn a_limit_ends_the_prefix_inside_a_block() {
    let text =
        b" 1 2.5 -3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34|".repeat(2);
    for kernel in Kernel::available() {
        for limit in 0..40 {
            assert_eq!(check_dense(kernel, &text, 0, limit), limit.min(34));
        }
        let short = [b" 1 22 333 4444".repeat(50), b"|".to_vec(), b" 5".repeat(50)].concat();
        for limit in 0..220 {
            assert_eq!(check_dense(kernel, &short, 0, limit), limit.min(200));
        }
    }
}

#[test]
fn finds_every_byte_of_a_kind_at_every_length() {
    let mut random = Random(6);
    for length in (0..400).chain([40_000]) {
        let text: Vec<u8> = (0..length).map(|_| random.one_of(b"\n\n\x0bx\x8a")).collect();
        let expected: Vec<u32> = (0..length as u32).filter(|at| text[*at as usize] == b'\n').collect();
        for kernel in Kernel::available() {
            let mut positions = vec![7];
            kernel.find_all(b'\n', &text, &mut positions);
            assert_eq!((positions[0], &positions[1..]), (7, &expected[..]), "{}", kernel.name());
        }
    }
}

#[test]
fn sparse_lines_equal_the_reference() {
    let mut random = Random(9);
    for round in 0..rounds(40_000) {
        let shape = shape(&mut random);
        let text = if round % 8 == 0 {
            hostile_text(&mut random, round % 401)
        } else {
            sparse_lines(&mut random, &shape, round % 2001)
        };
        let at = random.one_of(&[0, 0, 0, 0, 1, 5]).min(text.len());
        let end = random.one_of(&[text.len(), text.len(), text.len() / 2, text.len() + 9]);
        for kernel in Kernel::available() {
            check_sparse_lines(kernel, &text, at, end, &shape);
        }
    }
}

#[test]
fn long_blanks_hide_no_junk_in_sparse_lines() {
    let mut random = Random(14);
    for round in 0..4000 {
        let shape = shape(&mut random);
        let mut text = sparse_lines(&mut random, &shape, round % 501);
        for _ in 0..1 + random.below(3) {
            // Blocks end with the last of 64 bytes, so a number after the blanks may begin a block.
            let at = random.below(text.len() + 1).min(random.one_of(&[1, 2, text.len()]));
            let number: &[u8] = if random.below(2) == 0 { b"8" } else { b"" };
            let num_blanks = random.one_of(&[60, 61, 62, 63, 64, 127]);
            text.splice(at..at, [&vec![b' '; num_blanks][..], number].concat());
        }
        text.extend([b'|'; 150]);
        for kernel in Kernel::available() {
            check_sparse_lines(kernel, &text, 0, text.len(), &shape);
        }
    }
}

#[test]
fn consumes_plain_sparse_lines_to_the_end() {
    let mut random = Random(10);
    for round in 0..3000 {
        let (has_id, line_end) = (random.below(2) == 1, random.one_of::<&[u8]>(&[b"\n", b"\r\n"]));
        let shape = Shape { has_id, line_end, streams: vec![(0, b"src", 50_000), (1, b"tgt", 900)] };
        // Blocks look back, so only AVX-512 takes an id at the start of the text.
        let (mut text, at) = (b"a line \n".to_vec(), 8);
        for _ in 0..random.below(30) {
            text.extend(if has_id { "12 " } else { "" }.bytes());
            for (name, dim) in [("|src", 50_000), (" |tgt", 900)] {
                text.extend(name.bytes());
                let value = if round % 3 == 0 { "2.5" } else { "" };
                (0..1 + random.below(20)).for_each(|_| {
                    text.extend(format!(" {}:{}{value}", random.below(dim), random.below(10)).bytes());
                });
            }
            text.extend(line_end);
        }
        let end = text.len();
        text.extend(random.one_of(&["something else", "", "\n", "|src "]).bytes());
        text.extend([b'5'; 150]);
        for kernel in Kernel::available() {
            let stop = check_sparse_lines(kernel, &text, at, end, &shape);
            let takes_lines = !["scalar", "neon"].contains(&kernel.name());
            assert_eq!(stop, if takes_lines { end } else { at }, "{} {}", kernel.name(), shown(&text, at));
        }
    }
}

#[test]
fn sparse_form_rejects_unsuitable_streams() {
    let form = |streams: &[(usize, &[u8], u32)]| SparseForm::new(false, b"\n", streams);
    assert!(form(&[(0, b"thirteen byte", 5)]).is_some());
    assert!(form(&[(0, b"fourteen bytes", 5)]).is_none());
    assert!(form(&[]).is_none() && form(&[(0, b"", 5)]).is_none() && form(&[(0, b"x", 0)]).is_none());
    assert!(SparseForm::new(true, b"", &[(0, b"x", 5)]).is_none());
    let streams: Vec<(usize, &[u8], u32)> = (0..8).map(|column| (column, &b"x"[..], 5)).collect();
    assert!(form(&streams[..7]).is_some() && form(&streams).is_none());
    // Each stream needs a column of its own.
    assert!(form(&streams[1..2]).is_none() && form(&[streams[0], streams[0]]).is_none());
}

#[test]
fn consumes_nothing_after_the_end_of_the_slice() {
    for kernel in Kernel::available() {
        let (mut values, mut indices) = (vec![], vec![]);
        assert_eq!(kernel.dense_f32(b"1 2 |", 9, 4, &mut values), 9);
        assert_eq!(kernel.sparse_f32(b"1:2 |", 9, 4, &mut indices, &mut values), 9);
        assert!(values.is_empty() && indices.is_empty());
    }
}

/// Values that stand for no byte.
const NOT_SMALL: [f32; 7] = [-0.0, -1.0, 0.5, 256.0, 8_388_609.0, f32::NAN, f32::INFINITY];

#[test]
fn bytes_stand_for_the_same_bits_or_are_refused() {
    let mut random = Random(37);
    for count in (0..150).chain([1024]) {
        let bytes: Vec<u8> = (0..count).map(|_| random.below(256) as u8).collect();
        let mut values: Vec<f32> = bytes.iter().map(|&byte| byte.into()).collect();
        for kernel in Kernel::available() {
            let mut small = vec![MaybeUninit::new(9); count];
            assert!(kernel.narrow_u8(&values, &mut small), "{} on {count}", kernel.name());
            // SAFETY: all elements were written above.
            assert!(small.iter().zip(&bytes).all(|(small, &byte)| unsafe { small.assume_init() } == byte));
            for wrong in (0..count).rev().take(70) {
                let value = std::mem::replace(&mut values[wrong], random.one_of(&NOT_SMALL));
                assert!(!kernel.narrow_u8(&values, &mut small), "{} on {} at {wrong}", kernel.name(), values[wrong]);
                values[wrong] = value;
            }
        }
    }
}

fn checked_pairs(kernel: Kernel, indices: &[i32], values: &[f32], what: &str) {
    let is_small = |(&index, &value): (&i32, &f32)| {
        u16::try_from(index).is_ok() && (0..=255).any(|small: u8| f32::from(small).to_bits() == value.to_bits())
    };
    let mut pairs = vec![MaybeUninit::new([9u8; 3]); indices.len()];
    let are_small = kernel.narrow_pairs(indices, values, &mut pairs);
    assert_eq!(are_small, indices.iter().zip(values).all(is_small), "{} on {what}", kernel.name());
    if are_small {
        // SAFETY: all elements were written above.
        let pairs: Vec<[u8; 3]> = pairs.iter().map(|pair| unsafe { pair.assume_init() }).collect();
        let (mut out, mut floats) =
            (vec![MaybeUninit::new(-1); pairs.len()], vec![MaybeUninit::new(-1.0); pairs.len()]);
        kernel.widen_pairs(&pairs, &mut out, &mut floats);
        // SAFETY: as above.
        let (out, floats): (Vec<i32>, Vec<f32>) =
            out.iter().zip(&floats).map(|(index, value)| unsafe { (index.assume_init(), value.assume_init()) }).unzip();
        assert_eq!((&out[..], &floats[..]), (indices, values), "{} on {what}", kernel.name());
    }
}

#[test]
fn pairs_stand_for_the_same_bits_or_are_refused() {
    let mut random = Random(31);
    for count in (0..100).chain([1024]) {
        let indices: Vec<i32> = (0..count).map(|_| random.one_of(&[0, 1, 255, 256, 40_000, 65_535])).collect();
        let values: Vec<f32> = (0..count).map(|_| random.below(256) as f32).collect();
        for kernel in Kernel::available() {
            checked_pairs(kernel, &indices, &values, "small numbers");
            for wrong in (0..count).take(70) {
                let (mut indices, mut values) = (indices.clone(), values.clone());
                match random.below(2) {
                    0 => indices[wrong] = random.one_of(&[-1, 65_536, i32::MAX, i32::MIN]),
                    _ => values[wrong] = random.one_of(&NOT_SMALL),
                }
                checked_pairs(kernel, &indices, &values, "another number");
            }
        }
    }
}

/// Two pages, the second of which cannot be read. If text ends at the end of the first page, a read beyond the text is
/// a fault.
#[cfg(unix)]
struct PageEnd {
    start: *mut u8,
    page: usize,
}

#[cfg(unix)]
impl PageEnd {
    fn new() -> PageEnd {
        // SAFETY: the system chooses the address of an anonymous map of two pages; the map is checked to exist before
        // the second page is protected.
        unsafe {
            let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
            let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let start = libc::mmap(std::ptr::null_mut(), 2 * page, access, kind, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            let start = start.cast::<u8>();
            assert_eq!(libc::mprotect(start.add(page).cast(), page, libc::PROT_NONE), 0);
            PageEnd { start, page }
        }
    }

    /// Copy `text` so that it ends at the end of the first page.
    fn hold(&mut self, text: &[u8]) -> &[u8] {
        assert!(text.len() <= self.page);
        // SAFETY: the first page is mapped for reading and writing while `self` lives, and the text fits into it.
        unsafe {
            let start = self.start.add(self.page - text.len());
            std::ptr::copy_nonoverlapping(text.as_ptr(), start, text.len());
            std::slice::from_raw_parts(start, text.len())
        }
    }
}

#[cfg(unix)]
impl Drop for PageEnd {
    fn drop(&mut self) {
        // SAFETY: `new` created this map of two pages, and no slice of it outlives `self`.
        unsafe { libc::munmap(self.start.cast(), 2 * self.page) };
    }
}

#[cfg(unix)]
#[test]
fn reads_nothing_after_the_slice() {
    let mut random = Random(7);
    let mut pages = PageEnd::new();
    for round in 0..rounds(20_000) {
        let (length, shape) = (round % 401, shape(&mut random));
        let mut text = match random.below(4) {
            0 => hostile_text(&mut random, length),
            3 => sparse_lines(&mut random, &shape, length),
            kind => plain_text(&mut random, kind == 1, 16),
        };
        text.truncate(length);
        let text = pages.hold(&text);
        for kernel in Kernel::available() {
            check_dense(kernel, text, 0, 1000);
            check_sparse(kernel, text, 0, 100_000);
            check_sparse_lines(kernel, text, 0, text.len(), &shape);
            let mut line_ends = vec![];
            kernel.find_all(b'\n', text, &mut line_ends);
            assert_eq!(line_ends.len(), text.iter().filter(|byte| **byte == b'\n').count());
        }
    }
}
