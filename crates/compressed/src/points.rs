//! Access points: places from which data can be decompressed.

use cntkio_memory::requests;

/// Access points, in order.
#[derive(Debug, Default)]
pub struct Points {
    /// Offset of each point in the text.
    pub texts: Vec<u64>,
    /// Place of each point in the compressed data: 16 times the offset of the first byte that is not yet used, plus 8
    /// at the beginning of a member or a frame and at the end of the data. Elsewhere, plus the number of unused bits of
    /// the byte before that byte.
    pub places: Vec<u64>,
    /// For each point the end of its window in `windows`.
    pub window_ends: Vec<u64>,
    /// The windows, concatenated.
    pub windows: Vec<u8>,
}

impl Points {
    pub(super) fn note(&mut self, text: u64, place: Place, window: &[u8]) {
        requests::push(&mut self.texts, text);
        requests::push(&mut self.places, place.into());
        requests::append(&mut self.windows, window);
        requests::push(&mut self.window_ends, self.windows.len() as u64);
    }
}

/// A place in compressed data; see [`Points::places`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) byte: u64,
    pub(super) num_bits: u8,
    pub(super) is_begin: bool,
}

impl From<u64> for Place {
    fn from(place: u64) -> Place {
        // Any number is a place, also a number of a damaged cache: the reader refuses places that do not fit the data.
        Place { byte: place >> 4, num_bits: (place & 7) as u8, is_begin: place & 8 != 0 }
    }
}

impl From<Place> for u64 {
    fn from(place: Place) -> u64 {
        // No file has 2^60 bytes, so the shift loses nothing.
        place.byte << 4 | u64::from(place.is_begin) << 3 | u64::from(place.num_bits)
    }
}
