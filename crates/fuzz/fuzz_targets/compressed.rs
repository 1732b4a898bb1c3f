//! Decompress any bytes in order, and again segment by segment from the access points: both give the same text. Data
//! that were accepted in order are never refused later. The headers of zstd show the same access points, or none.
#![no_main]

use cntkio_compressed::{Kind, Packed, SpareDecoders, Stream, decompress, stated_points};
use libfuzzer_sys::fuzz_target;
use std::io::ErrorKind;

/// Longer texts are not checked: a few bytes can hold very long texts.
const MOST_TEXT: usize = 1 << 18;

fuzz_target!(|data: &[u8]| {
    // The first bytes choose the setting, so that the fuzzer can find all of them.
    let Some((&[choice, spacing, first, last], bytes)) = data.split_first_chunk() else { return };
    let kind = if choice & 1 == 0 { Kind::Gzip } else { Kind::Zstd };
    let read = |at: usize, buffer: &mut [u8]| {
        buffer.copy_from_slice(bytes.get(at..at + buffer.len()).ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    };
    let stated = stated_points(&read, bytes.len() as u64, 1 + 4 * u64::from(spacing)).expect("bytes in memory");
    let mut stream = Stream::new(kind, 1 + 4 * u64::from(spacing), None).expect("there is memory");
    let mut text = Vec::new();
    for piece in bytes.chunks(1 + usize::from(choice >> 1) * 3) {
        let mut at = 0;
        loop {
            let mut out = [0; 1 << 12];
            let Ok((read, written)) = stream.feed(&piece[at..], &mut out) else { return };
            at += read;
            text.extend_from_slice(&out[..written]);
            if text.len() > MOST_TEXT {
                return;
            }
            if (read, written) == (0, 0) {
                break;
            }
        }
        assert_eq!(at, piece.len());
    }
    assert_eq!((stream.packed, stream.text), (bytes.len() as u64, text.len() as u64));
    let points = &stream.points;
    if !stream.is_between() || points.texts.is_empty() {
        return;
    }
    if let (Kind::Zstd, Some((stated, size))) = (kind, stated) {
        assert_eq!((stated.texts, stated.places, size), (points.texts.clone(), points.places.clone(), stream.text));
    }
    let texts: Vec<u64> = points.texts.iter().copied().chain([text.len() as u64]).collect();
    let places: Vec<u64> = points.places.iter().copied().chain([(bytes.len() as u64) << 4 | 8]).collect();
    let window_bounds: Vec<u64> = [0].into_iter().chain(points.window_ends.iter().copied()).collect();
    let spare = SpareDecoders::new(2);
    let packed = |places, texts| Packed {
        kind,
        read: &read,
        texts,
        places,
        window_bounds: &window_bounds,
        windows: &points.windows,
        spare: &spare,
        sums: None,
    };
    let begin = text.len() * usize::from(first) / 256;
    let end = begin + (text.len() - begin) * usize::from(last) / 255;
    let mut out = vec![0; end - begin];
    decompress(packed(&places, &texts), begin as u64, &mut out).expect("what was read in order can be read again");
    assert!(out == text[begin..end]);
    // Access points of other data are faults or another text.
    let others: Vec<u64> = places.iter().map(|&place| (place + u64::from(first)) & !8).collect();
    let _ = decompress(packed(&others, &texts), begin as u64, &mut out);
    let longer: Vec<u64> = texts.iter().map(|&text| text + u64::from(text > begin as u64) * u64::from(last)).collect();
    let _ = decompress(packed(&places, &longer), begin as u64, &mut out);
});
