//! The parser of lines. It finds every fault. A line with a fault has no sample, and is a single finding.

use super::super::builder::Builder;
use super::super::findings::Stop;
use super::super::{Extent, Finding, Findings, Kind};
use super::{Layout, QUERY, end_of_field, is_blank, skip_blanks};
use crate::chunk::{Samples, Value, Values, in_any_type};
use crate::memory::push;
use crate::number::{self, Element};
use cntkio_simd::Kernel;
use memchr::memchr;

/// The columns: features, label, query.
const FEATURES: usize = 0;
const LABEL: usize = 1;
const QUERIES: usize = 2;

/// Why a line was dropped.
struct Fault {
    kind: Kind,
    at: usize,
    stream: usize,
    found: u64,
}

type Parsed<T> = Result<T, Fault>;

/// A parser of the sequences in one text.
pub(in super::super) struct Parser<'a> {
    /// The text, which begins at `first_byte` of the whole.
    pub text: &'a [u8],
    pub first_byte: usize,
    pub layout: Layout,
    pub kernel: Kernel,
    pub builders: &'a mut [Builder],
    pub findings: &'a mut Findings,
}

impl Parser<'_> {
    /// Parse sequences, which are numbered from `first_number`.
    pub(in super::super) fn sequences(&mut self, sequences: &[Extent], first_number: usize) -> Result<(), Stop> {
        let text = self.text;
        for (sequence, extent) in (first_number..).zip(sequences) {
            // Extents are clipped, so that an index of another text causes no panic.
            let end = extent.end.saturating_sub(self.first_byte).min(text.len());
            let mut at = extent.start.saturating_sub(self.first_byte).min(end);
            let bytes = &text[..end];
            while at < end {
                at = match self.line(bytes, at) {
                    Ok(end) => end,
                    Err(Fault { kind, at, stream, found }) => {
                        self.builders.iter_mut().for_each(Builder::drop_unfinished);
                        let stream = Some(stream);
                        self.findings.add(Finding { kind, at: self.first_byte + at, sequence, stream, found })?;
                        at
                    }
                };
                at = memchr(b'\n', &bytes[at..]).map_or(end, |feed| at + feed + 1);
            }
            self.builders.iter_mut().for_each(Builder::end_sequence);
        }
        Ok(())
    }

    /// Parse the line at an offset. Returns an offset in the line after the sample.
    fn line(&mut self, bytes: &[u8], start: usize) -> Parsed<usize> {
        let mut at = skip_blanks(bytes, start);
        if ends_line(bytes, at) {
            return Ok(at);
        }
        at = match &mut self.builders[LABEL].column.samples {
            Samples::Sparse { dim, indices, values, .. } => labels(bytes, at, *dim, indices, values)?,
            Samples::Dense { values, .. } => label(bytes, at, values)?,
            _ => at,
        };
        at = self.query(bytes, skip_blanks(bytes, at))?;
        // Kernels stop at a line feed, so they may look at the text after a sequence that ends with one.
        let view = if bytes.last() == Some(&b'\n') { self.text } else { bytes };
        let Samples::Sparse { dim, sample_offsets, indices, values } = &mut self.builders[FEATURES].column.samples
        else {
            unreachable!("features are sparse")
        };
        let before = sample_offsets.last().map_or(0, |&end| end as usize);
        let base = self.layout.base;
        let past_last = i64::from(base) + *dim as i64;
        // Indices of 2^31 and more do not fit, in any base.
        let bound = if self.layout.is_bounded { past_last.min(1 << 31) as u64 } else { 1 << 31 };
        let end = in_any_type!(values, values => features(self.kernel, bytes, view, at, bound, indices, values)?);
        let (mut least, mut wrong) = (i64::from(base), None);
        // Kernels append indices in any order, so the order is checked after them.
        for (number, index) in indices[before..].iter_mut().enumerate() {
            if i64::from(*index) < least && wrong.is_none() {
                let kind = if number == 0 { Kind::IndexOutOfRange } else { Kind::Descending };
                wrong = Some((number, *index, kind));
            }
            least = i64::from(*index) + 1;
            // An index below the first becomes negative, but it is a fault, so its line is dropped.
            *index -= base as i32;
        }
        // The dimension was made from the largest index, but it is at most 2^31 - 1, so the index 2^31 - 1 of a text
        // that counts from 0 comes here, and so do indices of a text that is not the text of the index.
        if wrong.is_none() && least > past_last {
            // `least` may be 2^31, which does not fit an i32.
            wrong = Some((indices.len() - before - 1, (least - 1) as i32, Kind::IndexOutOfRange));
        }
        if let Some((number, index, kind)) = wrong {
            let at = field_at(bytes, at, number);
            return Err(Fault { kind, at, stream: FEATURES, found: index as u64 });
        }
        for builder in &mut *self.builders {
            match &builder.column.samples {
                Samples::Sparse { .. } => builder.end_sparse_sample(),
                _ => builder.num_samples += 1,
            }
        }
        Ok(end)
    }

    /// Read or skip the query at an offset. Returns the offset after it.
    fn query(&mut self, bytes: &[u8], at: usize) -> Parsed<usize> {
        let is_wanted = self.layout.has_queries;
        let fault = |found| Fault { kind: Kind::BadQuery, at, stream: QUERIES, found };
        if !bytes[at..].starts_with(QUERY) {
            return if is_wanted { Err(fault(0)) } else { Ok(at) };
        }
        let end = end_of_field(bytes, at);
        if is_wanted && let Samples::Dense { values, .. } = &mut self.builders[QUERIES].column.samples {
            // Bytes that are not UTF-8 are not a number: the empty text is a fault, too.
            let text = std::str::from_utf8(&bytes[at + QUERY.len()..end]).unwrap_or_default();
            let query: i64 = text.parse().map_err(|_| fault(1))?;
            let Values::I64(values) = values else { return Err(fault(1)) };
            push(values, query);
        }
        Ok(end)
    }
}

/// True if the line has no further field at an offset.
#[inline(always)]
fn ends_line(bytes: &[u8], at: usize) -> bool {
    bytes.get(at).is_none_or(|&byte| byte == b'\n' || byte == b'#')
}

/// True if a value ends at an offset.
#[inline(always)]
fn ends_value(bytes: &[u8], at: usize) -> bool {
    bytes.get(at).is_none_or(|&byte| is_blank(byte) || byte == b'\n' || byte == b'#')
}

/// Read the number at an offset, which ends where `ends` says. Returns its value and the offset after it; otherwise the
/// offset of the byte that belongs to no number.
///
/// The value is rounded to float64, and from there to its type, as scikit-learn does: in rare cases, this is not the
/// nearest float32.
#[inline]
fn value(bytes: &[u8], at: usize, ends: impl Fn(usize) -> bool) -> Result<(f64, usize), usize> {
    // Most values of many data sets are counts of one digit.
    if let Some(digit) = bytes.get(at).map(|byte| byte.wrapping_sub(b'0')).filter(|&digit| digit <= 9)
        && ends(at + 1)
    {
        return Ok((digit.into(), at + 1));
    }
    let read = number::read::<f64>(bytes, at);
    match read {
        Ok((value, end)) if ends(end) => Ok((value, end)),
        _ => unusual_value(bytes, at, ends, read.map_or_else(|bad| bad, |(_, end)| end)),
    }
}

/// [`value`] of the forms `.5`, `1.e5`, `nan` and `inf`; `bad` is the byte that does not fit the usual forms.
#[cold]
#[inline(never)]
fn unusual_value(bytes: &[u8], at: usize, ends: impl Fn(usize) -> bool, bad: usize) -> Result<(f64, usize), usize> {
    let end = (at..bytes.len()).find(|&end| ends(end)).unwrap_or(bytes.len());
    let text = std::str::from_utf8(&bytes[at..end]).unwrap_or_default();
    text.parse().map(|value| (value, end)).map_err(|_| bad)
}

fn label(bytes: &[u8], at: usize, values: &mut Values) -> Parsed<usize> {
    let fault = |at| Fault { kind: Kind::BadLabel, at, stream: LABEL, found: 0 };
    in_any_type!(values, values => {
        let (value, end) = Field::read(bytes, at, |end| ends_value(bytes, end)).map_err(fault)?;
        push(values, value);
        Ok(end)
    })
}

/// Read several labels, or none: the line may begin with a feature or a query. Equal labels count once.
fn labels(bytes: &[u8], start: usize, dim: usize, indices: &mut Vec<i32>, values: &mut Values) -> Parsed<usize> {
    let end = end_of_field(bytes, start);
    if memchr(b':', &bytes[start..end]).is_some() {
        return Ok(start);
    }
    let fault = |kind, at, found| Fault { kind, at, stream: LABEL, found };
    let (before, mut at) = (indices.len(), start);
    loop {
        let ends = |at| at == end || bytes[at] == b',';
        let (label, after) = whole_number::<i128>(bytes, at, ends).map_err(|bad| fault(Kind::BadLabel, bad, 0))?;
        if label < 0 {
            return Err(fault(Kind::BadLabel, at, 0));
        }
        if label >= dim as i128 {
            return Err(fault(Kind::IndexOutOfRange, at, label.try_into().unwrap_or(u64::MAX)));
        }
        push(indices, label as i32);
        if after == end {
            break;
        }
        at = after + 1;
    }
    // `dedup` would also compare the labels of earlier samples, so equal labels are left out by hand.
    indices[before..].sort_unstable();
    let (num_all, mut kept) = (indices.len(), before);
    for number in before..num_all {
        if kept == before || indices[number] != indices[kept - 1] {
            indices[kept] = indices[number];
            kept += 1;
        }
    }
    indices.truncate(kept);
    for _ in before..kept {
        in_any_type!(values, values => push(values, Value::ONE));
    }
    Ok(end)
}

/// After a value at which a kernel stopped, the kernel is called again only if its last call took at least this many.
const VALUES_WORTH_A_KERNEL: usize = 8;

/// Append the features at an offset: indices as in the file, below `bound`, in any order. Returns the offset of the end
/// of the line or of a comment.
#[inline]
fn features<T: Field>(
    kernel: Kernel,
    bytes: &[u8],
    view: &[u8],
    start: usize,
    bound: u64,
    indices: &mut Vec<i32>,
    values: &mut Vec<T>,
) -> Parsed<usize> {
    let mut so_far = indices.len();
    // The bound is at most 2^31, so the cast changes nothing.
    let mut at = T::prefix(kernel, view, start, bound as u32, indices, values);
    let mut is_worth_it = indices.len() - so_far >= VALUES_WORTH_A_KERNEL;
    loop {
        at = skip_blanks(bytes, at);
        if ends_line(bytes, at) {
            return Ok(at);
        }
        let first = at;
        let mut index = 0u64;
        while let Some(digit) = bytes.get(at).map(|byte| byte.wrapping_sub(b'0')).filter(|&digit| digit <= 9) {
            // An index with any number of digits must stay out of range, so it does not wrap.
            index = index.saturating_mul(10).saturating_add(digit.into());
            at += 1;
        }
        let fault = |kind, at| Fault { kind, at, stream: FEATURES, found: index };
        if at == first {
            // Kernels end a value at a pipe, as in CNTK's text format. In this format, the pipe belongs to the value.
            if first > start && !is_blank(bytes[first - 1]) {
                let index = indices.last().map_or(0, |&index| index as u64);
                return Err(Fault { kind: Kind::BadNumber, at, stream: FEATURES, found: index });
            }
            return Err(fault(Kind::BadIndex, at));
        }
        if bytes.get(at) != Some(&b':') {
            return Err(fault(Kind::MissingColon, at));
        }
        if index >= bound {
            return Err(fault(Kind::IndexOutOfRange, first));
        }
        let ends = |end| ends_value(bytes, end);
        let (value, end) = T::read(bytes, at + 1, ends).map_err(|bad| fault(Kind::BadNumber, bad))?;
        push(indices, index as i32);
        push(values, value);
        at = end;
        if is_worth_it {
            so_far = indices.len();
            at = T::prefix(kernel, view, end, bound as u32, indices, values);
            is_worth_it = indices.len() - so_far >= VALUES_WORTH_A_KERNEL;
        }
    }
}

/// The offset of a field of a line, counted from the field at `at`.
fn field_at(bytes: &[u8], at: usize, number: usize) -> usize {
    // No offsets of features are kept, so the place of a fault is found by passing the fields again.
    let mut at = skip_blanks(bytes, at);
    for _ in 0..number {
        at = skip_blanks(bytes, end_of_field(bytes, at));
    }
    at
}

/// A type of labels and of values of features.
trait Field: Value {
    /// Read the number at an offset, which ends where `ends` says. Returns it and the offset after it; otherwise the
    /// offset of the byte that does not fit.
    fn read(bytes: &[u8], at: usize, ends: impl Fn(usize) -> bool) -> Result<(Self, usize), usize>;

    /// Append the features that a vector kernel is certain of. Returns the offset after them.
    #[inline]
    fn prefix(_: Kernel, _: &[u8], at: usize, _bound: u32, _: &mut Vec<i32>, _: &mut Vec<Self>) -> usize {
        at
    }
}

macro_rules! floats {
    ($($float:ty)*) => {$(
        impl Field for $float {
            #[inline]
            fn read(bytes: &[u8], at: usize, ends: impl Fn(usize) -> bool) -> Result<($float, usize), usize> {
                value(bytes, at, ends).map(|(value, end)| (value as $float, end))
            }

            #[inline]
            fn prefix(
                kernel: Kernel,
                bytes: &[u8],
                at: usize,
                bound: u32,
                indices: &mut Vec<i32>,
                values: &mut Vec<$float>,
            ) -> usize {
                <$float>::sparse_prefix(kernel, bytes, at, bound, indices, values)
            }
        }
    )*};
}
floats!(f32 f64);

macro_rules! whole_numbers {
    ($($whole:ty)*) => {$(
        impl Field for $whole {
            #[inline]
            fn read(bytes: &[u8], at: usize, ends: impl Fn(usize) -> bool) -> Result<($whole, usize), usize> {
                whole_number(bytes, at, ends)
            }
        }
    )*};
}
whole_numbers!(i32 i64);

/// Read a whole number, exactly; also in the forms `3.0` and `1e3`. Of the types, only i128 has numbers beyond 64 bits,
/// and each of them is some number beyond 64 bits.
#[inline]
fn whole_number<T: TryFrom<i64> + TryFrom<i128>>(
    bytes: &[u8],
    at: usize,
    ends: impl Fn(usize) -> bool,
) -> Result<(T, usize), usize> {
    // Most whole numbers are digits alone; 18 of them fit 64 bits.
    let is_negative = bytes.get(at) == Some(&b'-');
    let first = at + usize::from(is_negative);
    let (mut number, mut end) = (0i64, first);
    while let Some(digit) = bytes.get(end).map(|byte| byte.wrapping_sub(b'0')).filter(|&digit| digit <= 9)
        && end - first < 18
    {
        number = number * 10 + i64::from(digit);
        end += 1;
    }
    if end > first && ends(end) {
        let number = if is_negative { -number } else { number };
        return T::try_from(number).map(|number| (number, end)).map_err(|_| at);
    }
    let end = (at..bytes.len()).find(|&end| ends(end)).unwrap_or(bytes.len());
    unusual_whole_number(&bytes[at..end]).map(|number| (number, end)).map_err(|bad| at + bad)
}

/// [`whole_number`] of a text in another form than digits alone; otherwise the offset of the byte that does not fit.
#[cold]
#[inline(never)]
fn unusual_whole_number<T: TryFrom<i128>>(text: &[u8]) -> Result<T, usize> {
    match number::whole(text) {
        Some(number) => T::try_from(number).map_err(|_| 0),
        // float64 would round whole numbers beyond 2^53, and fractions to whole numbers, so it only says which byte is
        // wrong.
        None => Err(value(text, 0, |end| end == text.len()).map_or_else(|bad| bad, |_| 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::builder::{builders, finish};
    use super::*;
    use crate::chunk::NumberType;
    use crate::ctf::{Schema, Stream};
    use proptest::prelude::*;

    /// Parse a text of one line or some as one sequence. Returns the indices of the features, and the faults.
    fn parsed(text: &str, kernel: Kernel, number: NumberType, layout: Layout) -> (Vec<i32>, Findings) {
        let stream = |is_sparse, dim| Stream { name: vec![], is_sparse, dim, number };
        let streams = vec![stream(true, i32::MAX as usize), stream(false, 1)];
        let schema = Schema { keeps_findings: true, svmlight: Some(layout), ..Schema::of(streams) };
        let (mut builders, mut findings) = (builders(&schema, 1, None), Findings::new(u64::MAX, false));
        let mut parser = Parser {
            text: text.as_bytes(),
            first_byte: 0,
            layout,
            kernel,
            builders: &mut builders,
            findings: &mut findings,
        };
        let extent = Extent { start: 0, end: text.len(), length: 1 };
        assert!(parser.sequences(&[extent], 0).is_ok());
        match finish(1, builders).columns.swap_remove(FEATURES).samples {
            Samples::Sparse { indices, .. } => (indices, findings),
            _ => unreachable!("features are sparse"),
        }
    }

    const BY_ZERO: Layout = Layout { base: 0, has_queries: false, is_bounded: false };

    #[test]
    fn an_index_beyond_the_largest_dimension_is_out_of_range() {
        for text in ["1 2147483647:1\n", "1 3:1 2147483647:1\n", "1 2147483648:1\n"] {
            let (indices, findings) = parsed(text, Kernel::selected(), NumberType::F32, BY_ZERO);
            let kinds: Vec<Kind> = findings.first.iter().map(|finding| finding.kind).collect();
            assert_eq!((indices, kinds), (vec![], vec![Kind::IndexOutOfRange]), "{text}");
        }
    }

    fn lines() -> impl Strategy<Value = String> {
        let field = prop_oneof![
            9 => "[ \t]{1,2}[1-9]?[0-9]:-?[0-9]{1,3}(\\.[0-9]{1,3})?",
            1 => "[ \r\x0B]?[0-9|:#x.e-]{0,3}",
        ];
        let line = prop::collection::vec(field, 0..24).prop_map(|fields| format!("1{}\n", fields.concat()));
        prop::collection::vec(line, 1..4).prop_map(|lines| lines.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn kernels_and_types_find_the_same_faults(text in lines()) {
            let expected = parsed(&text, Kernel::named("scalar").unwrap(), NumberType::F64, BY_ZERO);
            for kernel in Kernel::available() {
                prop_assert_eq!(&parsed(&text, kernel, NumberType::F32, BY_ZERO), &expected, "{}", kernel.name());
            }
        }
    }
}
