//! Index and parse a svmlight text, whole and in parts: the same samples and faults, and columns that belong together.
#![no_main]

use cntkio_core::chunk::{Chunk, NumberType};
use cntkio_core::ctf::svmlight::{self, Layout};
use cntkio_core::ctf::{Column, Cut, Extent, Findings, Mode, Schema, Share, Source, Stream, parse_chunk};
use cntkio_core::text::{Text, in_memory};
use libfuzzer_sys::fuzz_target;

/// The starts of all sequences.
fn starts(shares: &[Share]) -> Vec<usize> {
    shares.iter().flat_map(|share| share.starts.iter().map(|&start| share.begin as usize + start as usize)).collect()
}

fuzz_target!(|data: &[u8]| {
    // The first byte chooses the setting, as in the target of the Python half.
    let Some((&choice, text)) = data.split_first() else { return };
    let has = |bit: u8| choice & (1 << bit) != 0;
    let read = in_memory(text);
    let source = Text { size: text.len(), read: &read };
    let mode = if has(2) { Mode::Ids } else { Mode::Lines };
    let Ok((shares, facts)) = svmlight::index(source, 0, 0..text.len(), mode, text.len().max(1)) else { return };
    let (small, same_facts) = svmlight::index(source, 0, 0..text.len(), mode, 7).expect("the same text");
    assert_eq!(facts, same_facts);
    let begins = starts(&shares);
    if mode == Mode::Lines {
        assert_eq!(begins, starts(&small));
        assert!(shares.iter().all(|share| matches!(share.lines, Column::Same(0 | 1))));
    }
    let stream =
        |is_sparse, dim, is_double| Stream { name: vec![], is_sparse, dim, number: NumberType::float(is_double) };
    let dim = facts.largest_index.clamp(1, 1 << 30) as usize;
    let mut streams = vec![stream(true, dim, has(4)), stream(has(0), if has(0) { 9 } else { 1 }, has(4))];
    if has(1) {
        streams.push(stream(false, 1, true));
    }
    let schema = Schema {
        is_compact: has(5),
        svmlight: Some(Layout { base: has(6).into(), has_queries: has(1), is_bounded: has(7) }),
        ..Schema::of(streams)
    };
    let ends = begins.iter().skip(1).copied().chain([text.len()]);
    let sequences: Vec<Extent> =
        begins.iter().zip(ends).map(|(&start, end)| Extent { start, end, length: 1 }).collect();
    let parse = |source, cut| -> (Chunk, Findings) {
        parse_chunk(source, &sequences, &schema, u64::MAX, false, cut, None).expect("readable text")
    };
    let (chunk, findings) = parse(Source::Memory(text), Cut { piece: usize::MAX, part: usize::MAX, gap: 0 });
    let (parts, same_findings) = parse(Source::File(source), Cut { piece: 40, part: 9, gap: 2 });
    assert_eq!(findings.counts, same_findings.counts);
    assert_eq!(chunk.num_sequences(), parts.num_sequences());
    for block in chunk.blocks().iter().chain(parts.blocks()) {
        for column in &block.columns {
            column.check(block.num_sequences).expect("a block's columns belong together");
        }
    }
});
