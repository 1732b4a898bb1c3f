//! Outside of a pool, no call starts rayon's global threads. A process can start them only once, so this test is alone.

use cntkio_core::chunk::{Block, Bytes, Chunk, Column, Encoding, FrameStart, Frames, Samples};
use cntkio_core::pack::{self, NumberType, Parts, Selection, Wanted};

#[test]
fn gathering_many_scaled_frames_outside_of_a_pool_starts_no_threads() {
    // The first sequence has the values of a whole share of a thread, and the second is taken without a sample.
    let num_frames = 1 << 16;
    let frames = Frames {
        frame_dim: 1,
        left: 0,
        right: 0,
        is_broadcast: false,
        blocks: vec![Bytes::new(vec![0; 2 * num_frames + 2])],
        starts: [0, 2 * num_frames].map(|offset| FrameStart { block: 0, encoding: 0, offset }).to_vec(),
        encodings: vec![Encoding { is_big_endian: true, scales: Some((vec![1.0], vec![3.0])) }],
    };
    let sequence_offsets = vec![0, num_frames as u32, num_frames as u32 + 1];
    let column = Column { sequence_offsets, samples: Samples::Frames(frames) };
    let chunk = Chunk::new(vec![Block { num_sequences: 2, columns: vec![column] }]);
    let parts = Some(Parts { firsts: &[0, 0], counts: &[num_frames as u32, 0] });
    let selection = Selection { chunk_of: &[0, 0], sequences: &[0, 1], parts };
    let wanted = Wanted { stream: 0, is_sparse: false, number: NumberType::F32 };

    let gathered = pack::gather(&[&chunk], selection, wanted).unwrap();

    assert_eq!(gathered.sequence_offsets, [0, num_frames as i64, num_frames as i64]);
    // The global threads can be configured only before they start.
    rayon::ThreadPoolBuilder::new().num_threads(1).build_global().unwrap();
}
