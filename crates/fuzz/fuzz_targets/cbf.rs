//! Parse chunks of both layouts and write them again: any bytes, several streams and numbers of sequences.
#![no_main]

use cntkio_core::cbf::{self, Parsed, Selected, Stream, Written};
use cntkio_core::chunk::{Bytes, Chunk};
use cntkio_core::pack;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // The first bytes choose the setting, so that the fuzzer can find all of them.
    let Some((&[choice, count, dim], bytes)) = data.split_first_chunk() else { return };
    let has = |bit: u8| choice & (1 << bit) != 0;
    let dim = 1 + usize::from(dim);
    let stream = |is_sparse, is_double, becomes_double| Stream { is_sparse, dim, is_double, becomes_double };
    let mut streams = vec![stream(has(0), has(1), has(2))];
    if has(3) {
        streams.push(stream(has(4), has(5), has(5)));
    }
    let num_sequences = if count == 255 { u32::MAX as usize } else { usize::from(count) };
    let is_documented = has(6);
    // The 2.x layout is not cut into pieces: the parser keeps the bytes, and the packer converts them to columns.
    let parse = |bytes: &[u8], piece| {
        if is_documented {
            return cbf::parse_documented(bytes, num_sequences, &streams, 1 << 16, piece, None);
        }
        let parsed = cbf::parse(Bytes::new(bytes.to_vec()), num_sequences, &streams, None)?;
        Ok(Parsed { chunk: pack::in_full_width(&parsed.chunk, None).expect("a checked chunk can be packed"), ..parsed })
    };
    let (whole, in_pieces) = (parse(bytes, usize::MAX), parse(bytes, 16));
    let Ok(Parsed { chunk, num_used, lengths }) = whole else {
        assert!(in_pieces.is_err()); // not always the same error, if there are several
        return;
    };
    assert_eq!(in_pieces.map(|parsed| (parsed.num_used, parsed.lengths)), Ok((num_used, lengths)));
    for block in chunk.blocks() {
        block.columns.iter().for_each(|column| column.check(block.num_sequences).expect("columns belong together"));
    }
    let write = |chunk: &Chunk| {
        let plain = chunk.as_plain().expect("`in_full_width` returned it");
        let written = [Written { chunk: plain, sequences: 0..chunk.num_sequences() }];
        let selected = |(column, stream): (usize, &Stream)| Selected { column, is_double: stream.is_double };
        let selected: Vec<Selected> = streams.iter().enumerate().map(selected).collect();
        let (sizes, lengths) = cbf::sizes(&written, &selected, is_documented);
        let num_sparse = streams.iter().filter(|stream| stream.is_sparse).count();
        let size = sizes.iter().sum::<u64>() as usize + cbf::extra_size(num_sparse, is_documented);
        let mut out = vec![0; size];
        if is_documented {
            cbf::write_documented(&written, &selected, &mut out).expect("a chunk that was read can be written");
        } else {
            cbf::write(&written, &selected, &lengths, &mut out).expect("a chunk that was read can be written");
        }
        out
    };
    if !is_documented {
        let own: Vec<u32> = (0..chunk.num_sequences() as u32).step_by(2).collect();
        let part = cbf::parse(Bytes::new(bytes.to_vec()), num_sequences, &streams, Some(&own));
        let part = part.expect("sequences of a sound chunk are sound").chunk;
        let [part, own] = [(&part, None), (&chunk, Some(&own[..]))]
            .map(|(chunk, own)| pack::in_full_width(chunk, own).expect("a checked chunk can be packed"));
        assert_eq!(write(&part), write(&own)); // bytes, because NaN is not equal to itself
    }
    // The written bytes equal the bytes that were read, except for the list of lengths and for converted values.
    let out = write(&chunk);
    if chunk.num_sequences() > 0 {
        let list = if is_documented { 0 } else { 4 * chunk.num_sequences() };
        assert_eq!(out.len(), num_used);
        if streams.iter().all(|stream| stream.is_double == stream.becomes_double) {
            assert_eq!(out[list..], bytes[list..num_used]);
        }
    }
});
