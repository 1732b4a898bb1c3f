//! Read text and binary label files from any bytes, under both rules and cut into pieces, and gather the labels.
#![no_main]

use cntkio_core::chunk::{Block, Chunk, Column, Runs, Samples};
use cntkio_core::mlf::{self, Classes, Labels, Rules, Unit};
use cntkio_core::pack::{self, NumberType, Parts, Selection, Wanted};
use cntkio_core::text::{Text, in_memory};
use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;

/// Largest number of frames gathered: the times in a short text may claim any number.
const MOST_FRAMES: usize = 1 << 16;

fn check(labels: &Labels, dim: u32, marks_starts: bool) {
    let count = labels.at.len();
    assert_eq!([labels.key_ends.len(), labels.frames.len(), labels.faults.len(), labels.run_ends.len()], [count; 4]);
    assert_eq!(labels.is_pattern.len(), count);
    assert_eq!(labels.starts.len(), labels.classes.len());
    assert!(labels.key_ends.windows(2).all(|pair| pair[0] <= pair[1]));
    // Entries without faults, in the form in which the packer gets them.
    let (mut sequence_offsets, mut offsets) = (vec![0u32], vec![0u32]);
    let (mut starts, mut classes, mut total) = (Vec::new(), Vec::new(), 0usize);
    for number in 0..count {
        let begin = if number == 0 { 0 } else { labels.run_ends[number - 1] as usize };
        let end = labels.run_ends[number] as usize;
        total = total.saturating_add(labels.frames[number] as usize);
        if labels.faults[number] != 0 || total > MOST_FRAMES {
            continue;
        }
        starts.extend(labels.starts.part(begin..end));
        classes.extend(labels.classes.part(begin..end));
        offsets.push(starts.len() as u32);
        sequence_offsets.push(sequence_offsets[sequence_offsets.len() - 1] + labels.frames[number]);
    }
    let num_sequences = offsets.len() - 1;
    let runs = Runs { dim: dim as usize, offsets, starts, classes, marks_starts, targets: None, each: OnceLock::new() };
    let column = Column { sequence_offsets: sequence_offsets.clone(), samples: Samples::Runs(runs) };
    column.check(num_sequences).expect("the runs cover their utterances");
    let chunk = Chunk::new(vec![Block { num_sequences, columns: vec![column] }]);
    let (chunk_of, sequences) = (vec![0; num_sequences], (0..num_sequences as u32).collect::<Vec<u32>>());
    let whole = Selection { chunk_of: &chunk_of, sequences: &sequences, parts: None };
    let wanted = Wanted { stream: 0, is_sparse: true, number: NumberType::F32 };
    let whole = pack::gather(&[&chunk], whole, wanted).expect("checked runs can be gathered");
    let indices = whole.entries.expect("labels are sparse").indices;
    assert_eq!(indices.len(), sequence_offsets[num_sequences] as usize);
    // The last frame of each utterance, gathered alone, equals the same frame of the whole utterance.
    let lasts: Vec<u32> = sequence_offsets.windows(2).map(|pair| (pair[1] - pair[0]).saturating_sub(1)).collect();
    if sequence_offsets.windows(2).all(|pair| pair[0] < pair[1]) && num_sequences > 0 {
        let counts = vec![1; num_sequences];
        let parts = Some(Parts { firsts: &lasts, counts: &counts });
        let single = Selection { chunk_of: &chunk_of, sequences: &sequences, parts };
        let found = pack::gather(&[&chunk], single, wanted).expect("frames are there").entries.expect("sparse").indices;
        let expected: Vec<i32> = sequence_offsets[1..].iter().map(|&end| indices[end as usize - 1]).collect();
        assert_eq!(found, expected);
    }
}

fuzz_target!(|data: &[u8]| {
    // The first bytes choose the setting, so that the fuzzer can find all of them.
    let Some((&[choice, dim], bytes)) = data.split_first_chunk() else { return };
    let has = |bit: u8| choice & (1 << bit) != 0;
    let dim = 1 + u32::from(dim);
    if has(7) {
        check(&mlf::scan_binary(bytes, dim), dim, has(0));
        return;
    }
    let names = ["sil", "aa", "b c", "0"];
    let classes: Classes = names.iter().zip(0..).map(|(name, class)| (name.as_bytes().to_vec(), class)).collect();
    let rules = Rules {
        is_compatible: has(1),
        unit: [Unit::Auto, Unit::Auto, Unit::Time, Unit::Frames][usize::from(choice >> 2 & 3)],
        frame_period: if has(4) { 100_000.0 } else { 50_000.5 },
        classes: has(5).then_some(classes),
        dim,
    };
    let whole = mlf::scan(bytes, &rules, usize::MAX);
    assert_eq!(mlf::scan(bytes, &rules, 16), whole);
    check(&whole, dim, has(0));
    let read = in_memory(bytes);
    mlf::label_names(Text { size: bytes.len(), read: &read }).expect("readable text");
});
