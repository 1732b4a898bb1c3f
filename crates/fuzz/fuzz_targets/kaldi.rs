//! Scan an archive, whole and in parts, and decode its objects; scan lists and maps.
#![no_main]

use cntkio_core::kaldi::{self, Kind, Wanted};
use cntkio_core::text::{Text, in_memory};
use libfuzzer_sys::fuzz_target;

/// Objects of more values are not decoded.
const MOST_VALUES: usize = 1 << 16;

fuzz_target!(|data: &[u8]| {
    let _ = kaldi::scan_list(data);
    let _ = kaldi::scan_map(data);
    let read = in_memory(data);
    let whole = Text { size: data.len(), read: &read };
    let (scan, fault) = kaldi::scan(whole, 0, data.len()).expect("bytes in memory");
    assert!(scan.next <= data.len() + 1);
    assert!(fault.is_none_or(|fault| fault.at <= data.len()));
    let part = Text { size: data.len() / 2, read: &read };
    let (fewer, _) = kaldi::scan(part, 0, data.len()).expect("bytes in memory");
    assert!(scan.objects.starts_with(&fewer.objects));
    let (same, _) = kaldi::objects(whole, &scan.offsets, data.len()).expect("bytes in memory");
    assert_eq!(same, scan.objects);
    for &object in &scan.objects {
        let num_values = object.rows as usize * object.cols as usize;
        if num_values == 0 || num_values > MOST_VALUES {
            continue;
        }
        if matches!(object.kind, Kind::Integers | Kind::TextIntegers) {
            let _ = kaldi::integers(whole, &[object], &mut vec![0; num_values]).expect("bytes in memory");
            continue;
        }
        let wanted = [Wanted { object, first_row: 0, num_rows: object.rows, first_col: 0 }];
        let mut singles = vec![[0; 4]; num_values];
        let mut doubles = vec![0f64; num_values];
        let cols = object.cols as usize;
        let one = kaldi::decode(whole, &wanted, cols, &mut singles).expect("bytes in memory");
        let other = kaldi::decode(whole, &wanted, cols, &mut doubles).expect("bytes in memory");
        assert_eq!(one, other);
    }
});
