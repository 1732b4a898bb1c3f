//! Speed of the kernels without the rest of the parser: one thread, reused output, a minimal loop over lines, and the
//! file in memory.
//!
//! ```text
//! cargo run --release --example measure -- FOLDER [REPEATS [CORPUS [KERNEL]]]
//! ```
//!
//! FOLDER contains floats.ctf, mnist.ctf, sparse.ctf and seqs.ctf, written by `bench/corpora.py`.

use std::hint::black_box;
use std::time::Instant;

use cntkio_simd::Kernel;

struct Stream {
    name: &'static [u8],
    dim: usize,
    is_sparse: bool,
    values: Vec<f32>,
    indices: Vec<i32>,
    rows: Vec<u32>,
}

fn stream(name: &'static str, dim: usize, is_sparse: bool) -> Stream {
    Stream { name: name.as_bytes(), dim, is_sparse, values: vec![], indices: vec![], rows: vec![] }
}

fn streams(corpus: &str) -> Vec<Stream> {
    match corpus {
        "floats" => vec![stream("x", 200, false), stream("y", 1, false)],
        "mnist" => vec![stream("labels", 10, false), stream("features", 784, false)],
        "sparse" => vec![stream("src", 50_000, true), stream("tgt", 50_000, true)],
        _ => vec![stream("word", 10_000, true), stream("tag", 50, true), stream("class", 5, true)],
    }
}

#[inline(never)]
fn parse(kernel: Kernel, bytes: &[u8], streams: &mut [Stream]) {
    let (mut at, mut next) = (0, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'0'..=b'9' | b' ' | b'\t' | b'\n' => at += 1,
            b'|' => {
                let rest = &bytes[at + 1..];
                while !rest.starts_with(streams[next].name) {
                    next = (next + 1) % streams.len();
                }
                let stream = &mut streams[next];
                at += 1 + stream.name.len();
                if stream.is_sparse {
                    stream.rows.push(stream.values.len() as u32);
                    at = kernel.sparse_f32(bytes, at, stream.dim as u32, &mut stream.indices, &mut stream.values);
                } else {
                    let wanted = stream.values.len() + stream.dim;
                    at = kernel.dense_f32(bytes, at, stream.dim, &mut stream.values);
                    if stream.values.len() < wanted {
                        slow(bytes, &mut at, wanted, kernel, &mut stream.values);
                    }
                }
                next = (next + 1) % streams.len();
            }
            other => panic!("byte {other} at {at}"),
        }
    }
}

#[cold]
fn slow(bytes: &[u8], at: &mut usize, wanted: usize, kernel: Kernel, values: &mut Vec<f32>) {
    while values.len() < wanted {
        let start = *at + bytes[*at..].iter().position(|byte| *byte != b' ').unwrap();
        *at = start + bytes[start..].iter().position(|byte| *byte <= b' ').unwrap();
        values.push(str::from_utf8(&bytes[start..*at]).unwrap().parse().unwrap());
        *at = kernel.dense_f32(bytes, *at, wanted - values.len(), values);
    }
}

fn best(repeats: usize, mut run: impl FnMut()) -> f64 {
    let seconds = |_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    (0..=repeats).map(seconds).skip(1).fold(f64::INFINITY, f64::min)
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().expect("a folder of corpora");
    let repeats = arguments.next().map_or(5, |text| text.parse().expect("a number of repeats"));
    let (only_corpus, only_kernel) = (arguments.next(), arguments.next());
    let is_wanted = |only: &Option<String>, name: &str| only.as_deref().is_none_or(|only| only == name);
    for corpus in ["floats", "mnist", "sparse", "seqs"].into_iter().filter(|name| is_wanted(&only_corpus, name)) {
        let mut bytes = std::fs::read(format!("{folder}/{corpus}.ctf")).expect("a corpus");
        bytes.truncate(64_000_000);
        bytes.truncate(bytes.iter().rposition(|byte| *byte == b'\n').unwrap() + 1);
        for kernel in Kernel::available().into_iter().filter(|kernel| is_wanted(&only_kernel, kernel.name())) {
            let mut streams = streams(corpus);
            let parsing = best(repeats, || {
                for stream in &mut streams {
                    stream.values.clear();
                    stream.indices.clear();
                    stream.rows.clear();
                }
                parse(kernel, &bytes, &mut streams);
            });
            let mut line_ends = vec![];
            let scanning = best(repeats, || {
                for part in bytes.chunks(1 << 16) {
                    line_ends.clear();
                    kernel.find_all(b'\n', part, &mut line_ends);
                    black_box(&line_ends);
                }
            });
            let rate = |seconds: f64| bytes.len() as f64 / 1e9 / seconds;
            let name = kernel.name();
            println!("{corpus:7} {name:7} parse {:5.2} GB/s  line ends {:6.2} GB/s", rate(parsing), rate(scanning));
        }
    }
}
