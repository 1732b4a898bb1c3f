//! Archives (ark), lists (scp) and maps of Kaldi. (docs/formats/kaldi.md)
//!
//! | module | question |
//! |---|---|
//! | `scan` | which objects does an archive have, and where? Headers are read, and texts, whose rows have to be counted |
//! | `values` | which values does an object have? |
//! | `lines` | what do the lines of a list or of a map say? |
//! | `write` | how do columns become an archive? |
//!
//! Invariants: no file is opened here, no input causes a panic, the memory is bounded by the window of the text and the
//! values that are asked for, and a fault has its offset.

mod lines;
mod scan;
mod values;
mod write;

pub use lines::{LineError, LineFault, List, WHOLE, scan_list, scan_map};
pub use scan::{Broken, Fault, Kind, Object, Scan, Unread, objects, scan};
pub use values::{Cell, Wanted, decode, integers, windows};
pub use write::{Written, write};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{Text, in_memory};
    use std::io;

    #[test]
    fn no_rows_of_any_kind_are_decoded_to_no_values() {
        let matrices: [&[u8]; 5] = [b"CM ", b"CM2 ", b"CM3 ", b"FM ", b"DM "];
        for name in matrices {
            let sizes: &[u8] = if name[0] == b'C' { &[0; 8] } else { &[] };
            let number = |number: u8| if name[0] == b'C' { vec![number, 0, 0, 0] } else { vec![4, number, 0, 0, 0] };
            let bytes = [b"\0B", name, sizes, &number(0), &number(3), &[0; 32]].concat();
            let read = in_memory(&bytes);
            let text = Text { size: bytes.len(), read: &read };
            let (found, _) = objects(text, &[0], bytes.len()).unwrap();
            assert_eq!((found[0].rows, found[0].cols), (0, 3));
            let wanted = [Wanted { object: found[0], first_row: 0, num_rows: 0, first_col: 0 }];
            assert_eq!(decode(text, &wanted, 3, &mut [0f64; 0]).unwrap(), None);
        }
    }

    #[test]
    fn objects_whose_sizes_do_not_fit_their_bytes_are_refused() {
        let bytes: Vec<u8> = (0..100).collect();
        let read = |at: usize, buffer: &mut [u8]| {
            buffer.copy_from_slice(bytes.get(at..at + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        };
        let text = Text { size: bytes.len(), read: &read };
        let refused = Some((0, Broken { at: 20, fault: Fault::Truncated }));
        // The place of row 2^30 among rows of 2^31 doubles is 2^64 bytes, which would wrap to the first row.
        let sizes = [
            (Kind::DoubleMatrix, 1 << 31, 1 << 31, 1 << 30),
            (Kind::FloatMatrix, 1 << 31, 1 << 31, 1 << 31),
            (Kind::FloatMatrix, 4, 2, 2),
            (Kind::DoubleVector, 1, 3, 0),
            (Kind::FloatVector, 1, 3, 0),
            (Kind::OneByte, u32::MAX, u32::MAX, 0),
        ];
        for (kind, rows, cols, first_row) in sizes {
            let object = Object { kind, rows, cols, begin: 20, end: 40 };
            for num_rows in [0, 1] {
                let wanted = [Wanted { object, first_row, num_rows, first_col: 1 }];
                let mut doubles = vec![0f64; num_rows as usize];
                assert_eq!(decode(text, &wanted, 1, &mut doubles).unwrap(), refused, "{kind:?} in double precision");
                let mut singles = vec![[0u8; 4]; num_rows as usize];
                assert_eq!(decode(text, &wanted, 1, &mut singles).unwrap(), refused, "{kind:?}");
            }
        }
        // Numbers without bytes would stay 0.
        let vector = Object { kind: Kind::Integers, rows: 5, cols: 1, begin: 20, end: 40 };
        assert_eq!(integers(text, &[vector], &mut [0; 5]).unwrap(), refused);
    }
}
