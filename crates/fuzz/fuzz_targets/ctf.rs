//! Index, parse and infer a text corpus, from any bytes with several schemas, error budgets and sizes of pieces.
#![no_main]

#[path = "../../core/tests/joined/mod.rs"]
mod joined;

use cntkio_core::chunk::{Block, NumberType, Pool};
use cntkio_core::ctf::{self, Cut, Extent, Findings, Mode, Pass, Schema, Source, Stream};
use cntkio_core::text::{Text, in_memory};
use cntkio_simd::Kernel;
use joined::joined;
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;

fn stream(name: &str, is_sparse: bool, dim: usize, is_double: bool) -> Stream {
    Stream { name: name.into(), is_sparse, dim, number: NumberType::float(is_double) }
}

fn check(block: &Block) {
    for column in &block.columns {
        column.check(block.num_sequences).expect("a block's columns belong together");
    }
}

fuzz_target!(|data: &[u8]| {
    // The first byte chooses the setting, so that the fuzzer can find all of them.
    let Some((&choice, text)) = data.split_first() else { return };
    let has = |bit: u8| choice & (1 << bit) != 0;
    let streams =
        vec![stream("a", has(2) && has(7), 3, has(0)), stream("ab", true, 10, has(1)), stream("b", has(2), 1, false)];
    let schema = Schema { defining: has(3).then_some(0), is_compact: has(2), ..Schema::of(streams) };
    let mode = if has(4) { Mode::Lines } else { Mode::Ids };
    let budget = if has(5) { u64::MAX } else { u64::from(choice >> 6) };
    let _ = ctf::infer(text);
    let defining = schema.defining.map(|number| &schema.streams[number].name[..]);
    let read = in_memory(text);
    let source = Text { size: text.len(), read: &read };
    let scan = ctf::scan(text, mode, defining);
    let index = ctf::index(source, 0, 0..text.len(), mode, defining, 9);
    assert_eq!(index.ok().map(|shares| joined(&shares)).as_ref(), scan.as_ref().ok());
    let Ok(scan) = scan else { return };
    let sequences = scan.extents(0, text.len());
    let mut findings = Findings::new(budget, has(6));
    let block = ctf::parse(text, &sequences, &schema, &mut findings);
    let followed = [text, &[b'\n'; 150]].concat();
    let mut findings_of_followed = Findings::new(budget, has(6));
    let scalar = Kernel::named("scalar").expect("every processor has the scalar kernel");
    let block_of_followed = ctf::parse_with(scalar, &followed, &sequences, &schema, &mut findings_of_followed);
    for kernel in Kernel::available() {
        let mut others = Findings::new(budget, has(6));
        let other = ctf::parse_with(kernel, text, &sequences, &schema, &mut others);
        assert_eq!((&other, &others), (&block, &findings), "the {} kernel", kernel.name());
        // Kernels that look far ahead parse whole lines only if enough bytes follow.
        let mut others = Findings::new(budget, has(6));
        let other = ctf::parse_with(kernel, &followed, &sequences, &schema, &mut others);
        assert_eq!((&other, &others), (&block_of_followed, &findings_of_followed), "the {} kernel", kernel.name());
    }
    let (pool, cut) = (Arc::new(Pool::new(1 << 20)), Cut { piece: 16, part: 5, gap: 2 });
    let chunk_of = |source: Source| {
        ctf::parse_chunk(source, &sequences, &schema, budget, has(6), cut, Some(&pool)).expect("readable text")
    };
    let (chunk, in_pieces) = chunk_of(Source::Memory(text));
    // The same result, also in memory that an earlier chunk has released to the pool.
    for _ in 0..2 {
        let (read_chunk, read_findings) = chunk_of(Source::File(source));
        assert_eq!(read_findings, in_pieces);
        assert!(in_pieces.last_straw.is_some() || read_chunk == chunk);
    }
    assert_eq!(findings.last_straw, in_pieces.last_straw);
    assert_eq!(findings.counts, in_pieces.counts);
    if findings.last_straw.is_none() {
        check(&block);
        chunk.blocks().iter().for_each(check);
        assert_eq!(chunk.num_sequences(), block.num_sequences);
        let samples = |blocks: &[Block], stream: usize| -> usize {
            blocks.iter().map(|block| block.columns[stream].num_samples()).sum()
        };
        for stream in 0..schema.streams.len() {
            assert_eq!(samples(chunk.blocks(), stream), block.columns[stream].num_samples());
        }
    }
    // Indexing and parsing in one pass gives the same chunk, or none.
    if schema.defining.is_none() && scan.head_lines == 0 && !sequences.is_empty() {
        let borders = ctf::chunk_borders(source, sequences[0].start, 40, mode).expect("readable text");
        let starts: Vec<u64> = sequences.iter().map(|sequence| sequence.start as u64).collect();
        let sizes: Vec<u32> = sequences.iter().map(|sequence| (sequence.end - sequence.start) as u32).collect();
        let (mut placed, mut open) = (starts.clone(), None);
        let begun = ctf::place(0, &mut placed, Some(&sizes), text.len() as u64, 40, &mut open);
        let chunk_starts: Vec<i64> = begun.firsts.into_iter().chain([sequences.len() as i64]).collect();
        let pass = Pass { text: source, mode, schema: &schema, part_size: 5, pool: Some(&pool), excluded: None };
        let indexed = ctf::index_chunks(pass, &borders, 2).expect("readable text");
        for (number, indexed) in indexed.into_iter().enumerate() {
            let Some((scans, chunk)) = indexed else { continue };
            let range = chunk_starts[number] as usize..chunk_starts[number + 1] as usize;
            let indexed_starts: Vec<u64> = scans.iter().flat_map(|scan| scan.starts.iter().copied()).collect();
            assert_eq!(indexed_starts, starts[range.clone()]);
            let mut findings = Findings::new(0, true);
            let block = ctf::parse(text, &sequences[range], &schema, &mut findings);
            assert_eq!(findings.counts.iter().sum::<u64>(), 0);
            // Only chunks that are packed later keep values in fewer bytes.
            assert!(schema.is_compact || chunk.blocks().len() > 1 || chunk.blocks()[0] == block);
            assert_eq!(chunk.num_sequences(), block.num_sequences);
            chunk.blocks().iter().for_each(check);
        }
    }
    // Extents are clipped to the text.
    let wrong = [Extent { start: text.len() / 2, end: usize::MAX, length: 1 }];
    ctf::parse(text, &wrong, &schema, &mut Findings::new(u64::MAX, false));
});
