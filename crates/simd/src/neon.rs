//! Blocks of 64 bytes in vectors of 16 bytes with NEON, for 64-bit ARM processors.

use std::arch::aarch64::*;
use std::arch::aarch64::{vandq_u8 as and, vceqq_u8 as same, vdupq_n_u8 as splat, vorrq_u8 as or, vsubq_u8 as minus};
use std::mem::MaybeUninit;

use crate::block::{self, BLOCK_BYTES, Block, IS_NEAR_MIDDLE, MAX_TOKENS, TO_THE_FRONT, Token, kernel_of_blocks};
use crate::functions::Functions;
use crate::scalar;

// The loops of the scalar kernel over numbers in bytes use NEON, too, because every 64-bit ARM processor has it.
pub(crate) static KERNEL: Functions = Functions {
    name: "neon",
    is_available: || std::arch::is_aarch64_feature_detected!("neon"),
    dense_f32,
    sparse_f32,
    find_all,
    ..scalar::KERNEL
};

kernel_of_blocks!(uint8x16_t, 4, 16, "neon");

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

/// All bits set for each byte that is at most 9.
#[target_feature(enable = "neon")]
#[inline]
fn is_digit(digits: uint8x16_t) -> uint8x16_t {
    vcleq_u8(digits, vdupq_n_u8(9))
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

#[target_feature(enable = "neon")]
#[inline]
fn runs(text: &[u8; 4 + 16]) -> [uint16x8_t; 2] {
    let [thousands, hundreds, tens, units] = digits_of_runs(text);
    let ten = vdupq_n_u8(10);
    let low = vmlaq_u8(units, tens, ten);
    let high = vmlaq_u8(hundreds, thousands, ten);
    let hundred = vdupq_n_u8(100);
    [
        vmlal_u8(vmovl_u8(vget_low_u8(low)), vget_low_u8(high), vget_low_u8(hundred)),
        vmlal_high_u8(vmovl_high_u8(low), high, hundred),
    ]
}

#[target_feature(enable = "neon")]
#[inline]
fn write_front(values: uint16x8_t, shuffle: &[u8; 16], out: &mut [MaybeUninit<f32>; 8]) {
    let front = vreinterpretq_u16_u8(vqtbl1q_u8(vreinterpretq_u8_u16(values), load(shuffle)));
    // SAFETY: the stores write eight values.
    unsafe {
        vst1q_f32(out.as_mut_ptr().cast(), vcvtq_f32_u32(vmovl_u16(vget_low_u16(front))));
        vst1q_f32(out.as_mut_ptr().add(4).cast(), vcvtq_f32_u32(vmovl_high_u16(front)));
    }
}
