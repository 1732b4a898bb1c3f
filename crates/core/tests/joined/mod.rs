//! The sequences of the shares of a text as one list; also for the fuzz target.

use cntkio_core::ctf::{Column, Scan, Share};

/// The numbers of a column; one number stands for `count` numbers.
fn numbers(column: &Column, count: usize) -> Vec<u64> {
    match column {
        Column::Same(number) => vec![(*number).into(); count],
        Column::Bytes(numbers) => numbers.iter().map(|&number| number.into()).collect(),
        Column::Shorts(numbers) => numbers.iter().map(|&number| number.into()).collect(),
        Column::Words(numbers) => numbers.iter().map(|&number| number.into()).collect(),
        Column::Longs(numbers) => numbers.clone(),
    }
}

/// Join the sequences of shares.
pub(crate) fn joined(shares: &[Share]) -> Scan {
    let mut all = Scan::default();
    for share in shares {
        *all.lines.last_mut().unwrap_or(&mut all.head_lines) += share.head_lines;
        let keys = numbers(&share.keys, 0);
        let lines = numbers(&share.lines, share.starts.len());
        for (sequence, &own) in share.starts.iter().enumerate() {
            let (start, lines) = (share.begin + u64::from(own), lines[sequence] as u32);
            if sequence == 0 && !keys.is_empty() && all.keys.last() == keys.first() {
                *all.lines.last_mut().unwrap() += lines;
                continue;
            }
            all.starts.push(start);
            all.lines.push(lines);
            all.keys.extend(keys.get(sequence));
            all.hollow.extend(share.hollow.contains(&own).then_some(start));
        }
    }
    all
}
