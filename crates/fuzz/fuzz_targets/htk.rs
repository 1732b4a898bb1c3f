//! Read lists of utterances, and gather frames from any bytes, with any starts, encodings, windows and parts.
#![no_main]

use cntkio_core::chunk::{Block, Bytes, Chunk, Column, Encoding, FrameStart, Frames, Samples, Values};
use cntkio_core::htk::{self, ListRules};
use cntkio_core::keys;
use cntkio_core::pack::{self, NumberType, Parts, Selection, Wanted};
use libfuzzer_sys::fuzz_target;

fn list(choice: u8, text: &[u8]) {
    let rules = ListRules {
        is_compatible: choice & 1 != 0,
        folder: (choice & 2 != 0).then(|| b"a/b".to_vec()),
        prefix: if choice & 4 != 0 { b"p".to_vec() } else { Vec::new() },
        turns_backslashes: choice & 8 != 0,
    };
    let Ok(list) = htk::scan_list(text, &rules) else { return };
    let count = list.files.len();
    assert_eq!([list.first.len(), list.last.len(), list.key_ends.len()], [count; 3]);
    assert!(list.files.iter().all(|&file| (file as usize) < list.paths.len()));
    assert!(list.first.iter().zip(&list.last).all(|(first, last)| first <= last));
    assert!(list.key_ends.windows(2).all(|pair| pair[0] < pair[1]));
    assert_eq!(list.key_ends.last().copied().unwrap_or(0), list.keys.len());
    let (rows, width) = keys::padded(&list.keys, &list.key_ends);
    assert_eq!(keys::first_same(&rows, width).len(), count);
}

/// Bits of the values of samples, computed in the simplest way.
fn slow(frames: &Frames, number: usize, length: usize, samples: std::ops::Range<usize>) -> Vec<u32> {
    let start = frames.starts[number];
    let encoding = &frames.encodings[start.encoding as usize];
    let size = encoding.frame_size(frames.frame_dim);
    let mut out = Vec::new();
    for sample in samples {
        let center = sample.min(length - 1);
        for at in center as isize - frames.left as isize..=(center + frames.right) as isize {
            let at = start.offset + at.clamp(0, length as isize - 1) as usize * size;
            let frame = &frames.blocks[start.block as usize].as_slice()[at..at + size];
            for k in 0..frames.frame_dim {
                let value = match &encoding.scales {
                    None => {
                        let bytes = frame[4 * k..4 * k + 4].try_into().unwrap();
                        if encoding.is_big_endian { f32::from_be_bytes(bytes) } else { f32::from_le_bytes(bytes) }
                    }
                    Some((a, b)) => {
                        let bytes = frame[2 * k..2 * k + 2].try_into().unwrap();
                        let whole =
                            if encoding.is_big_endian { i16::from_be_bytes(bytes) } else { i16::from_le_bytes(bytes) };
                        (f32::from(whole) + b[k]) / a[k]
                    }
                };
                out.push(value.to_bits());
            }
        }
    }
    out
}

fuzz_target!(|data: &[u8]| {
    // The first bytes choose the setting, so that the fuzzer can find all of them.
    let Some((&[choice, dim, window, count], bytes)) = data.split_first_chunk() else { return };
    if choice & 128 != 0 {
        list(choice, bytes);
        return;
    }
    let has = |bit: u8| choice & (1 << bit) != 0;
    let frame_dim = 1 + usize::from(dim % 8);
    let scales = |shift: f32| (vec![2.0 + shift; frame_dim], vec![shift; frame_dim]);
    let encodings = vec![
        Encoding { is_big_endian: has(0), scales: None },
        Encoding { is_big_endian: has(1), scales: has(2).then(|| scales(0.5)) },
    ];
    // 8 bytes describe an utterance: block, encoding, start (2 bytes), length, part, unused, high start; any values.
    let num_sequences = usize::from(count % 16);
    let Some((described, content)) = bytes.split_at_checked(8 * num_sequences) else { return };
    let (mut starts, mut sequence_offsets) = (Vec::new(), vec![0u32]);
    for one in described.chunks_exact(8) {
        let at =
            usize::from(u16::from_le_bytes([one[2], one[3]])) + if one[7] == 255 { usize::MAX - 70_000 } else { 0 };
        starts.push(FrameStart { block: u32::from(one[0] % 3), encoding: u32::from(one[1] % 3), offset: at });
        sequence_offsets.push(sequence_offsets[sequence_offsets.len() - 1] + u32::from(one[4]));
    }
    let (first, second) = content.split_at(content.len() / 2);
    let frames = Frames {
        frame_dim,
        left: usize::from(window % 4),
        right: usize::from(window / 64),
        is_broadcast: has(3),
        blocks: vec![Bytes::new(first.to_vec()), Bytes::new(second.to_vec())],
        starts,
        encodings,
    };
    let column = Column { sequence_offsets: sequence_offsets.clone(), samples: Samples::Frames(frames.clone()) };
    if column.check(num_sequences).is_err() || num_sequences == 0 {
        return;
    }
    let chunk = Chunk::new(vec![Block { num_sequences, columns: vec![column] }]);
    let sequences: Vec<u32> = (0..num_sequences as u32).rev().collect();
    let chosen =
        |shift: u32| sequences.iter().map(|&n| u32::from(described[8 * n as usize + 5]) >> shift & 7).collect();
    let (firsts, counts): (Vec<u32>, Vec<u32>) = (chosen(0), chosen(3));
    let chunk_of = vec![0; num_sequences];
    let parts = has(4).then_some(Parts { firsts: &firsts, counts: &counts });
    let selection = Selection { chunk_of: &chunk_of, sequences: &sequences, parts };
    let length = |number: u32| (sequence_offsets[number as usize + 1] - sequence_offsets[number as usize]) as usize;
    let samples = |at: usize| match parts {
        None => 0..length(sequences[at]),
        Some(Parts { firsts, counts }) => firsts[at] as usize..(firsts[at] + counts[at]) as usize,
    };
    let is_inside = (0..num_sequences).all(|at| frames.is_broadcast || samples(at).end <= length(sequences[at]));
    let Ok(ragged) =
        pack::gather(&[&chunk], selection, Wanted { stream: 0, is_sparse: false, number: NumberType::F32 })
    else {
        assert!(!is_inside);
        return;
    };
    assert!(is_inside);
    let Values::F32(values) = ragged.values else { panic!("frames are single precision") };
    let expected: Vec<u32> = (0..num_sequences)
        .filter(|&at| length(sequences[at]) > 0)
        .flat_map(|at| slow(&frames, sequences[at] as usize, length(sequences[at]), samples(at)))
        .collect();
    let has_empty = (0..num_sequences).any(|at| length(sequences[at]) == 0 && !samples(at).is_empty());
    if !has_empty {
        let is_same = |(found, expected): (&f32, &u32)| {
            found.to_bits() == *expected || (found.is_nan() && f32::from_bits(*expected).is_nan())
        };
        assert!(values.len() == expected.len() && values.iter().zip(&expected).all(is_same));
    }
});
