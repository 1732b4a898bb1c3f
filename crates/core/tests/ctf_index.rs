//! The index of a text, in one block and in shares, against a slow, obvious reader of its lines.

mod joined;
#[path = "../../simd/tests/random/mod.rs"]
mod random;

use cntkio_core::ctf::{self, BadId, Column, Mode, Open, Scan, Share, Unindexed};
use cntkio_core::text::{Text, in_memory};
use joined::joined;
use random::{Random, rounds};

/// True if a line holds a pipe, the name, and what ends names.
fn holds(line: &[u8], name: &[u8]) -> bool {
    let wanted = [b"|", name].concat();
    let ends_name = |byte: Option<&u8>| byte.is_none_or(|&byte| byte <= b' ' || byte == b'|' || byte >= 0x80);
    (0..line.len()).any(|at| line[at..].starts_with(&wanted) && ends_name(line.get(at + wanted.len())))
}

/// True if a line is blank, or contains only comments, with or without an id in front.
fn is_nothing(line: &[u8]) -> bool {
    let content: Vec<u8> = line.iter().copied().skip_while(u8::is_ascii_digit).collect();
    let (has_id, mut items) = (content.len() < line.len(), content.split(|&byte| byte == b'|'));
    let is_blank = items.next().unwrap().iter().all(|&byte| byte <= b' ');
    let comments: Vec<&[u8]> = items.collect();
    is_blank && comments.iter().all(|item| item.starts_with(b"#")) && !(has_id && comments.is_empty())
}

fn reference(text: &[u8], first: usize, mode: Mode, defining: Option<&[u8]>) -> Result<Scan, u64> {
    let mut found = Scan::default();
    let mut start = first;
    for line in text[first..].split_inclusive(|byte| *byte == b'\n') {
        let counts = u32::from(defining.is_none_or(|name| holds(line, name)));
        let id = std::str::from_utf8(&line[..line.iter().take_while(|byte| byte.is_ascii_digit()).count()]).unwrap();
        let is_new = match mode {
            Mode::Lines => true,
            Mode::Ids if id.is_empty() => false,
            Mode::Ids => {
                let key: u64 = id.parse().map_err(|_| start as u64)?;
                if id.len() == line.len() {
                    continue; // digits up to the end of the file are not a line
                }
                let is_new = found.keys.last() != Some(&key);
                found.keys.extend(is_new.then_some(key));
                is_new
            }
        };
        if is_new && defining.is_none() && is_nothing(line) {
            found.hollow.push(start as u64);
        }
        if is_new {
            found.starts.push(start as u64);
            found.lines.push(counts);
        } else {
            *found.lines.last_mut().unwrap_or(&mut found.head_lines) += counts;
        }
        start += line.len();
    }
    Ok(found)
}

fn text(random: &mut Random) -> Vec<u8> {
    let mut text = vec![];
    let (mut id, step) = (random.one_of(&[0, 7, 98, 9_999_998, 18_446_744_073_709_551_610]), random.below(4));
    for _ in 0..random.below(40) {
        if random.below(4) <= step {
            id = u64::wrapping_add(id, 1);
        }
        match random.below(30) {
            0 => text.extend(b"99999999999999999999 "),
            1..=4 => text.extend(random.one_of::<&[u8]>(&[b"", b" ", b"|a 1", b"\r", b"\xe9", b"00"])),
            _ => text.extend(format!("{id}").bytes()),
        }
        text.extend(random.one_of::<&[u8]>(&[b" |a 1:1", b"|a", b" |ab 2", b"\t|b 3 |a", b"", b" x", b"|# |a"]));
        (0..random.one_of(&[0, 0, 0, 70])).for_each(|_| text.push(b'.'));
        text.extend(random.one_of::<&[u8]>(&[b"\n", b"\n", b"\n", b"\n", b"\r\n", b"\n\n"]));
    }
    text.truncate(text.len() - random.below(9).min(text.len()));
    text
}

#[test]
fn the_index_is_that_of_line_after_line_however_the_text_is_shared_out() {
    let mut random = Random(15);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    let mut num_sequences = 0;
    for _ in 0..rounds(20_000) {
        let text = text(&mut random);
        let mode = random.one_of(&[Mode::Lines, Mode::Ids]);
        let defining = random.one_of::<Option<&[u8]>>(&[None, None, Some(b"a")]);
        let what = format!("{mode:?}, {defining:?}: {:?}", String::from_utf8_lossy(&text));
        let expected = reference(&text, 0, mode, defining);
        let scan = ctf::scan(&text, mode, defining).map_err(|BadId { at }| at);
        assert_eq!(scan, expected, "{what}");
        let first = random.one_of(&[0, 0, 3]).min(text.len());
        let expected = reference(&text, first, mode, defining);
        let share = random.one_of(&[1, 5, 30, 64, 200, 10_000]);
        let read = in_memory(&text);
        let source = Text { size: text.len(), read: &read };
        let index = || ctf::index(source, first, first..text.len(), mode, defining, share);
        let index = pool.install(index).map(|shares| joined(&shares)).map_err(|fault| match fault {
            Unindexed::BadId(BadId { at }) => at,
            other => panic!("{other:?} in {what}"),
        });
        assert_eq!(index, expected, "from {first} in shares of {share}, {what}");
        num_sequences += index.map_or(0, |scan| scan.starts.len());
    }
    assert!(num_sequences > rounds(50_000), "{num_sequences}");
}

#[test]
fn the_parts_of_a_text_have_the_lines_that_start_in_them() {
    let mut random = Random(16);
    for _ in 0..3000 {
        let text = text(&mut random);
        let read = in_memory(&text);
        let middle = random.below(text.len() + 1);
        let source = Text { size: text.len(), read: &read };
        let part = |part| joined(&ctf::index(source, 0, part, Mode::Lines, None, 50).unwrap());
        let (before, behind) = (part(0..middle), part(middle..text.len()));
        let expected = reference(&text, 0, Mode::Lines, None).unwrap();
        assert_eq!([before.starts, behind.starts].concat(), expected.starts);
        assert_eq!([before.lines, behind.lines].concat(), expected.lines);
    }
}

#[test]
fn a_text_that_cannot_be_read_has_no_index() {
    let read = |at: usize, _: &mut [u8]| {
        if at < 100 { Ok(()) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) }
    };
    let index = ctf::index(Text { size: 1000, read: &read }, 0, 0..1000, Mode::Lines, None, 64);
    assert!(matches!(index, Err(Unindexed::Unread(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof));
}

#[test]
fn a_word_that_reaches_the_end_of_the_text_is_no_line() {
    for (text, starts, lines) in [
        (&b"a |x 1\na"[..], &[0][..], &[1][..]),
        (b"a |x 1\nb", &[0], &[1]),
        (b"a |x 1\na ", &[0], &[2]),
        (b"a |x 1\na\n", &[0], &[2]),
        (b"a |x 1\n\nb\tc", &[0, 8], &[2, 1]),
        (b"a", &[], &[]),
        (b"", &[], &[]),
    ] {
        let scan = ctf::scan_words(text, None).unwrap();
        assert_eq!((&scan.starts[..], &scan.lines[..], scan.head_lines), (starts, lines, 0), "{}", text.escape_ascii());
    }
}

#[test]
fn numbers_take_as_few_bytes_as_they_fit() {
    let share = |keys: &[u64], lines: &[u32]| {
        let starts = (0..keys.len() as u64).map(|number| (1 << 40) + number).collect();
        Share::from(Scan { keys: keys.to_vec(), lines: lines.to_vec(), starts, ..Scan::default() })
    };
    let small = share(&[7, 5], &[3, 3]);
    assert_eq!((small.begin, small.starts), (1 << 40, vec![0, 1]));
    assert_eq!((small.keys, small.lines), (Column::Words(vec![7, 5]), Column::Same(3)));
    let large = share(&[7, 1 << 32], &[3, 255]);
    assert_eq!((large.keys, large.lines), (Column::Longs(vec![7, 1 << 32]), Column::Bytes(vec![3, 255])));
    assert_eq!(share(&[1, 2], &[256, 1]).lines, Column::Shorts(vec![256, 1]));
    assert_eq!(share(&[1, 2], &[1 << 16, 1]).lines, Column::Words(vec![1 << 16, 1]));
}

#[test]
fn chunks_have_whole_sequences_and_starts_count_from_their_beginnings() {
    let mut open = None;
    let mut starts = [0u32, 7, 7];
    let begun = ctf::place(3, &mut starts, Some(&[7, 0, 4]), 0, 9, &mut open);
    assert_eq!((begun.firsts, begun.begins, begun.ends), (vec![0, 2], vec![3, 10], vec![10]));
    assert_eq!((starts, open), ([0, 7, 0], Some(Open { begin: 10, end: 14 })));
    let mut starts = [0u32, 5];
    let begun = ctf::place(14, &mut starts, None, 1 << 40, 9, &mut open);
    assert_eq!((begun.firsts, begun.begins, begun.ends), (vec![1], vec![19], vec![19]));
    assert_eq!((starts, open), ([4, 0], Some(Open { begin: 19, end: 1 << 40 })));
    let begun = ctf::place::<u32>(0, &mut [], None, 0, 9, &mut None);
    assert_eq!(begun, ctf::Begun::default());
}

#[test]
fn a_start_that_does_not_fit_its_type_begins_a_chunk() {
    // The text between 14 and 300 is left out, so the chunk stays below its limit.
    let mut open = Some(Open { begin: 3, end: 14 });
    let mut starts = [0u8, 4];
    let begun = ctf::place(300, &mut starts, Some(&[4, 5]), 0, 99, &mut open);
    assert_eq!((begun.firsts, begun.begins, begun.ends), (vec![0], vec![300], vec![14]));
    assert_eq!((starts, open), ([0, 4], Some(Open { begin: 300, end: 309 })));
}

#[test]
fn keys_are_distinct_unless_two_are_the_same() {
    let keys: Vec<u32> = (0..10_000).map(|number| number * 7919 % 99_989).collect();
    assert!(cntkio_core::keys::are_distinct(&keys));
    assert!(!cntkio_core::keys::are_distinct(&[&keys[..], &keys[77..78]].concat()));
    assert!(cntkio_core::keys::are_distinct(&[1u64 << 60, 1]) && !cntkio_core::keys::are_distinct(&[5u64, 5]));
}
