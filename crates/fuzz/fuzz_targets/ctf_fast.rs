//! Index, parse and infer a text corpus once, with one kernel: the parser alone, many times as fast as `ctf`, which
//! compares kernels and ways of reading.
#![no_main]

use cntkio_core::chunk::NumberType;
use cntkio_core::ctf::{self, Findings, Mode, Schema, Stream};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // The first byte chooses the setting, so that the fuzzer can find all of them.
    let Some((&choice, text)) = data.split_first() else { return };
    let has = |bit: u8| choice & (1 << bit) != 0;
    let stream =
        |name: &str, is_sparse, dim| Stream { name: name.into(), is_sparse, dim, number: NumberType::float(has(0)) };
    let schema = Schema {
        defining: has(2).then_some(0),
        has_words: has(3),
        is_compact: has(4),
        is_subset: has(5),
        notes_unknown_names: has(6),
        ..Schema::of(vec![stream("a", has(1), 3), stream("ab", !has(1), 10)])
    };
    let mode = if has(6) { Mode::Lines } else { Mode::Ids };
    if has(7) {
        let _ = ctf::infer(text);
    }
    let defining = schema.defining.map(|number| &schema.streams[number].name[..]);
    let Ok(scan) = ctf::scan(text, mode, defining) else { return };
    let sequences = scan.extents(0, text.len());
    let mut findings = Findings::new(u64::MAX, false);
    let block = ctf::parse(text, &sequences, &schema, &mut findings);
    for column in &block.columns {
        column.check(block.num_sequences).expect("a block's columns belong together");
    }
});
