//! The core of cntkio: loops over bytes, values, samples and sequences, as pure functions on buffers.
//!
//! | module | what it turns into what |
//! |---|---|
//! | [`ctf`] | bytes of a text corpus into its table of sequences and into columns, and columns into text |
//! | [`convert`] | tokens and columns of numbers into lines of that text |
//! | [`cbf`] | the bytes of a binary chunk into columns, and columns into bytes |
//! | [`find`] | sequences and frames of utterances into the chunks that hold them |
//! | [`htk`] | lists of utterances into columns |
//! | [`kaldi`] | archives, lists and maps of Kaldi into values and columns |
//! | [`keys`] | keys of any lengths into rows of one width |
//! | [`mlf`] | label files into runs of classes |
//! | [`number`] | the digits of a number into its correctly rounded value |
//! | [`check_sums`] | bytes into checksums of their blocks |
//! | [`lengths`] | lengths of sequences, in as few bytes as they take |
//! | [`line_numbers`] | bytes of a text into the numbers of their lines |
//! | [`chunk`] | columns of every kind, which parsers make and the packer takes |
//! | [`survey`] | chunks into hashes of their sequences and figures of their streams |
//! | [`text`] | a text that is read into blocks of whole lines |
//! | [`timeline`] | lengths, a window and a seed into the order of a sweep, and into what each read delivers |
//! | [`parallel`] | work of several parts into its results, in order, on all threads of a pool |
//! | [`pack`] | a selection of sequences out of chunks into one minibatch's arrays; whole chunks into whole arrays |
//!
//! This crate opens no file, prints nothing and never panics on any input. It keeps nothing between calls, except for
//! the memory of released blocks in a [`chunk::Pool`], which the caller owns. Every decision (what is read, in which
//! order, how much, what an error means) is made in Python.
#![forbid(unsafe_code)]

pub mod cbf;
pub mod check_sums;
pub mod chunk;
pub mod convert;
pub mod ctf;
pub mod find;
pub mod htk;
pub mod kaldi;
pub mod keys;
pub mod lengths;
pub mod line_numbers;
mod lines;
pub mod losses;
pub mod mlf;
mod named;
pub mod number;
mod owners;
pub mod pack;
pub mod parallel;
pub mod survey;
pub mod text;
pub mod timeline;

pub use cntkio_memory::requests as memory;

/// Number of findings or remarks of a kind that are kept in full: a damaged file may have millions.
pub const MOST_IN_FULL: usize = 10;
