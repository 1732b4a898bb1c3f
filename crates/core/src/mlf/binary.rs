//! Binary label files.

use super::labels::{Fault, Labels, Stop};
use crate::htk::LONGEST_KEY;
use crate::memory;

/// Read a binary file.
pub fn scan_binary(data: &[u8], dim: u32) -> Labels {
    let mut labels = Labels::default();
    if let Err((stop, at)) = read_entries(data, dim, &mut labels) {
        labels.stop = Some((stop, at as u64));
    }
    labels
}

fn read_entries(data: &[u8], dim: u32, labels: &mut Labels) -> Result<(), (Stop, usize)> {
    let Some((b"MLF", rest)) = data.split_at_checked(3) else {
        return Err((Stop::NotBinary, 0));
    };
    let mut bytes = Reader { data: rest };
    let version = bytes.short().filter(|version| matches!(version, 1 | 2)).ok_or((Stop::Version, 3))?;
    while !bytes.data.is_empty() {
        let at = data.len() - bytes.data.len();
        let (key, frames, runs) = bytes.entry(version).ok_or((Stop::Truncated, at))?;
        // All keys are padded to the width of the longest, so a damaged size must not become that width.
        if key.len() > LONGEST_KEY {
            return Err((Stop::LongKey, at));
        }
        let first_run = labels.starts.len();
        let runs = runs
            .as_chunks::<4>()
            .0
            .iter()
            .map(|&[a, b, c, d]| (u32::from(u16::from_le_bytes([a, b])), u32::from(u16::from_le_bytes([c, d]))));
        // An entry has fewer than 2^16 runs, each of fewer than 2^16 frames.
        let fault = if runs.clone().map(|(_, count)| count).sum::<u32>() != frames {
            Fault::WrongSum
        } else if frames == 0 {
            Fault::NoFrames
        } else if runs.clone().any(|(class, _)| class >= dim) {
            Fault::LargeClass
        } else {
            Fault::None
        };
        // The runs of other entries are never delivered.
        if fault == Fault::None {
            let mut end = 0;
            // Empty runs are left out, because the runs of a chunk must ascend. (`Runs::check`)
            for (class, count) in runs.filter(|&(_, count)| count > 0) {
                labels.starts.push(end);
                labels.classes.push(class);
                end += count;
            }
        }
        memory::append(&mut labels.keys, &key);
        memory::push(&mut labels.key_ends, labels.keys.len());
        memory::push(&mut labels.is_pattern, false);
        memory::push(&mut labels.at, at as u64);
        labels.end_entry(first_run, frames, (fault, at as u64));
    }
    Ok(())
}

struct Reader<'a> {
    data: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.data.split_at_checked(size)?;
        self.data = rest;
        Some(taken)
    }

    fn short(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    fn long(&mut self) -> Option<u32> {
        self.take(4).map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// Read an entry: its key, its number of frames, and the bytes of its runs.
    fn entry(&mut self, version: u16) -> Option<(Vec<u8>, u32, &'a [u8])> {
        let key = if version == 1 {
            // Keys of version 1 are numbers. Their decimal digits are the key of the utterance.
            self.long()?.to_string().into_bytes()
        } else {
            let size = self.short()?;
            self.take(size.into())?.to_vec()
        };
        let frames = self.long()?;
        let num_runs = self.short()?;
        Some((key, frames, self.take(4 * usize::from(num_runs))?))
    }
}
