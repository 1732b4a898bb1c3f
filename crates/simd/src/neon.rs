//! Blocks of 64 bytes in vectors of 16 bytes with NEON, for 64-bit ARM processors.

use std::arch::aarch64::*;
use std::mem::MaybeUninit;

use crate::block::{self, BLOCK_BYTES, Block, IS_NEAR_MIDDLE, MAX_TOKENS, TO_THE_FRONT, Token};
use crate::functions::Functions;
use crate::scalar;

// The loops of the scalar kernel over numbers in bytes use NEON, too, because every 64-bit ARM processor has it.
pub(crate) static KERNEL: Functions = Functions {
    name: "neon",
    is_available: || std::arch::is_aarch64_feature_detected!("neon"),
    dense_f32,
    sparse_f32,
    line_ends,
    ..scalar::KERNEL
};

/// 64 bytes. Only `load` creates such a value, so the processor has the instructions wherever there is one.
#[derive(Clone, Copy)]
struct Sixteens([uint8x16_t; 4]);

impl Block for Sixteens {
    #[inline(always)]
    unsafe fn load(bytes: &[u8; BLOCK_BYTES]) -> Sixteens {
        let [a, b, c, d] = bytes.as_chunks().0 else { unreachable!("64 bytes are four times 16") };
        // SAFETY: the caller guarantees the instructions.
        unsafe { Sixteens([load(a), load(b), load(c), load(d)]) }
    }

    #[inline(always)]
    fn equal(self, byte: u8) -> u64 {
        // SAFETY: there is a value of this type.
        unsafe { equal(self, byte) }
    }

    #[inline(always)]
    fn blanks(self) -> u64 {
        // SAFETY: there is a value of this type.
        unsafe { blanks(self) }
    }

    #[inline(always)]
    fn digits(self) -> u64 {
        // SAFETY: there is a value of this type.
        unsafe { digits(self) }
    }

    #[inline(always)]
    fn values(self, a: Token, b: Token, c: Token, d: Token, out: &mut [MaybeUninit<f32>; 4]) -> u32 {
        let [low, high] = out.as_chunks_mut().0 else { unreachable!("four are two times two") };
        // SAFETY: there is a value of this type.
        unsafe { values_of_two(a, b, low) | values_of_two(c, d, high) << 2 }
    }

    #[inline(always)]
    fn short_integers(self, text: &[u8; 4 + BLOCK_BYTES], ends: u64, out: &mut [MaybeUninit<f32>; MAX_TOKENS + 8]) {
        // SAFETY: there is a value of this type.
        unsafe { short_integers(text, ends, out) }
    }
}

#[target_feature(enable = "neon")]
#[inline]
fn load(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: the reference is to 16 bytes.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

/// A mask of bytes whose bits are all set or all clear: each byte keeps a bit of its own, and three rounds add
/// neighbours.
#[target_feature(enable = "neon")]
#[inline]
fn mask([a, b, c, d]: [uint8x16_t; 4]) -> u64 {
    let bits = load(&[1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128]);
    let low = vpaddq_u8(vandq_u8(a, bits), vandq_u8(b, bits));
    let high = vpaddq_u8(vandq_u8(c, bits), vandq_u8(d, bits));
    let fours = vpaddq_u8(low, high);
    vgetq_lane_u64::<0>(vreinterpretq_u64_u8(vpaddq_u8(fours, fours)))
}

#[target_feature(enable = "neon")]
#[inline]
fn equal(Sixteens(parts): Sixteens, byte: u8) -> u64 {
    mask(parts.map(|part| vceqq_u8(part, vdupq_n_u8(byte))))
}

#[target_feature(enable = "neon")]
#[inline]
fn blanks(Sixteens(parts): Sixteens) -> u64 {
    mask(parts.map(|part| vorrq_u8(vceqq_u8(part, vdupq_n_u8(b' ')), vceqq_u8(part, vdupq_n_u8(b'\t')))))
}

/// All bits set for each byte that is at most 9.
#[target_feature(enable = "neon")]
#[inline]
fn is_digit(digits: uint8x16_t) -> uint8x16_t {
    vcleq_u8(digits, vdupq_n_u8(9))
}

#[target_feature(enable = "neon")]
#[inline]
fn digits(Sixteens(parts): Sixteens) -> u64 {
    mask(parts.map(|part| is_digit(vsubq_u8(part, vdupq_n_u8(b'0')))))
}

/// The integers that the first eight and the last eight digits of a token form.
#[target_feature(enable = "neon")]
#[inline]
fn eights(token: Token) -> uint64x2_t {
    // A shuffle beyond the vector gives zero.
    let digits = vqtbl1q_u8(vsubq_u8(load(token.window), vdupq_n_u8(b'0')), load(&token.form.shuffle));
    let pairs = vpaddlq_u8(vmulq_u8(digits, vreinterpretq_u8_u16(vdupq_n_u16(0x010a))));
    let fours = vpaddlq_u16(vmulq_u16(pairs, vreinterpretq_u16_u32(vdupq_n_u32(0x0001_0064))));
    vpaddlq_u32(vmulq_u32(fours, vreinterpretq_u32_u64(vdupq_n_u64(0x0000_0001_0000_2710))))
}

/// Like [`Block::values`], for two tokens.
#[target_feature(enable = "neon")]
#[inline]
fn values_of_two(a: Token, b: Token, out: &mut [MaybeUninit<f32>; 2]) -> u32 {
    let scales = [a.form.scale, b.form.scale];
    let (a, b) = (eights(a), eights(b));
    // The product is exact, so the sum is rounded like an integer of 64 bits.
    let high = vmulq_f64(vcvtq_f64_u64(vzip1q_u64(a, b)), vdupq_n_f64(1e8));
    let number = vaddq_f64(high, vcvtq_f64_u64(vzip2q_u64(a, b)));
    // SAFETY: the load reads two numbers.
    let product = vmulq_f64(number, unsafe { vld1q_f64(scales.as_ptr()) });
    let [error, masked, middle] = IS_NEAR_MIDDLE.map(|bits| bits as u64);
    let near = vaddq_u64(vreinterpretq_u64_f64(product), vdupq_n_u64(error));
    let is_near = vceqq_u64(vandq_u64(near, vdupq_n_u64(masked)), vdupq_n_u64(middle));
    // SAFETY: the store writes two values.
    unsafe { vst1_f32(out.as_mut_ptr().cast(), vcvt_f32_f64(product)) };
    (vgetq_lane_u64::<0>(is_near) & 1 | vgetq_lane_u64::<1>(is_near) & 2) as u32
}

/// The values of the runs of digits that end before each of 16 bytes, in order; `text` is the bytes and the four bytes
/// before them.
#[target_feature(enable = "neon")]
#[inline]
fn runs(text: &[u8; 4 + 16]) -> [uint16x8_t; 2] {
    let digits = |first: usize| {
        let bytes = text[first..].first_chunk().expect("16 bytes follow the first four");
        vsubq_u8(load(bytes), vdupq_n_u8(b'0'))
    };
    let [thousands, hundreds, tens, units] = [digits(0), digits(1), digits(2), digits(3)];
    let has_tens = is_digit(tens);
    let has_hundreds = vandq_u8(has_tens, is_digit(hundreds));
    let has_thousands = vandq_u8(has_hundreds, is_digit(thousands));
    let ten = vdupq_n_u8(10);
    let low = vmlaq_u8(units, vandq_u8(has_tens, tens), ten);
    let high = vmlaq_u8(vandq_u8(has_hundreds, hundreds), vandq_u8(has_thousands, thousands), ten);
    let hundred = vdupq_n_u8(100);
    [
        vmlal_u8(vmovl_u8(vget_low_u8(low)), vget_low_u8(high), vget_low_u8(hundred)),
        vmlal_high_u8(vmovl_high_u8(low), high, hundred),
    ]
}

#[target_feature(enable = "neon")]
#[inline]
fn short_integers(text: &[u8; 4 + BLOCK_BYTES], ends: u64, out: &mut [MaybeUninit<f32>; MAX_TOKENS + 8]) {
    let mut length = 0;
    for part in 0..4 {
        let eights = runs(text[16 * part..].first_chunk().expect("the block has four parts"));
        for (half, values) in eights.into_iter().enumerate() {
            let ends = (ends >> (16 * part + 8 * half)) as u8;
            let front = vqtbl1q_u8(vreinterpretq_u8_u16(values), load(&TO_THE_FRONT[usize::from(ends)]));
            let front = vreinterpretq_u16_u8(front);
            let eight_out: &mut [_; 8] = out[length..].first_chunk_mut().expect("room for eight more");
            // SAFETY: the stores write eight values.
            unsafe {
                vst1q_f32(eight_out.as_mut_ptr().cast(), vcvtq_f32_u32(vmovl_u16(vget_low_u16(front))));
                vst1q_f32(eight_out.as_mut_ptr().add(4).cast(), vcvtq_f32_u32(vmovl_high_u16(front)));
            }
            length += ends.count_ones() as usize;
        }
    }
}

#[target_feature(enable = "neon")]
fn dense_f32(bytes: &[u8], at: usize, limit: usize, out: &mut Vec<f32>) -> usize {
    // SAFETY: this function has the same requirement.
    unsafe { block::dense_f32::<Sixteens>(bytes, at, limit, out) }
}

#[target_feature(enable = "neon")]
fn sparse_f32(bytes: &[u8], at: usize, dim: u32, indices: &mut Vec<i32>, values: &mut Vec<f32>) -> usize {
    // SAFETY: this function has the same requirement.
    unsafe { block::sparse_f32::<Sixteens>(bytes, at, dim, indices, values) }
}

#[target_feature(enable = "neon")]
fn line_ends(bytes: &[u8], out: &mut Vec<u32>) {
    // SAFETY: this function has the same requirement.
    unsafe { block::line_ends::<Sixteens>(bytes, out) }
}
