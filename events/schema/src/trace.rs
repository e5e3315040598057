//! Which trace something belongs to, carried as data: the W3C `traceparent` of the span that caused it. Opaque: nothing is ever decided from
//! it, and no state, digest or key holds it. Ids are made in shells, which have chance and clocks.
//!
//! Bounded by its form. `tracestate` is not carried: it is of any length, and nobody here adds to it.

use minicbor::decode::Error as DecodeError;
use minicbor::encode::Write;
use minicbor::{Decode, Decoder, Encode, Encoder};
use std::fmt;
use std::str::FromStr;

/// The header that carries it, over HTTP and in records of Kafka.
pub const TRACEPARENT: &str = "traceparent";

/// Bytes of its written form: trace, span, flags.
const LEN: usize = 16 + 8 + 1;

/// The span that something follows from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceContext {
    trace: [u8; 16],
    span: [u8; 8],
    flags: u8,
}

/// Why something is no trace context. Whoever sent it meant another form, or none; go on without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is no `traceparent`; expected 00-TRACE-SPAN-FLAGS with 32, 16 and 2 lower-case hexadecimal digits, neither id zero"
)]
pub struct TraceContextError;

impl TraceContext {
    /// Of ids that are not zero.
    pub fn new(trace: [u8; 16], span: [u8; 8], flags: u8) -> Result<Self, TraceContextError> {
        let valid = trace != [0; 16] && span != [0; 8];
        valid.then_some(Self { trace, span, flags }).ok_or(TraceContextError)
    }

    /// What a [`TRACEPARENT`] header says, if there is one that can be understood; any other is passed over.
    #[must_use]
    pub fn of_header(value: Option<&[u8]>) -> Option<Self> {
        std::str::from_utf8(value?).ok()?.trim().parse().ok()
    }

    /// The trace.
    #[must_use]
    pub fn trace(&self) -> [u8; 16] {
        self.trace
    }

    /// The span within it.
    #[must_use]
    pub fn span(&self) -> [u8; 8] {
        self.span
    }

    /// Bit 0: somebody keeps this trace.
    #[must_use]
    pub fn flags(&self) -> u8 {
        self.flags
    }
}

impl FromStr for TraceContext {
    type Err = TraceContextError;
    fn from_str(text: &str) -> Result<Self, TraceContextError> {
        let mut parts = text.split('-');
        let [Some(version), Some(trace), Some(span), Some(flags)] = std::array::from_fn(|_| parts.next()) else {
            return Err(TraceContextError);
        };
        let [version] = hexadecimal(version)?;
        // A later version may say more behind what this one knows; 255 is none.
        if version == 0xff || (version == 0 && parts.next().is_some()) {
            return Err(TraceContextError);
        }
        let [flags] = hexadecimal(flags)?;
        Self::new(hexadecimal(trace)?, hexadecimal(span)?, flags)
    }
}

fn hexadecimal<const N: usize>(text: &str) -> Result<[u8; N], TraceContextError> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Ok(byte - b'0'),
        b'a'..=b'f' => Ok(byte - b'a' + 10),
        _ => Err(TraceContextError),
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return Err(TraceContextError);
    }
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = (digit(*high)? << 4) | digit(*low)?;
    }
    Ok(bytes)
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("00-")?;
        self.trace.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("-")?;
        self.span.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "-{:02x}", self.flags)
    }
}

impl<C> Encode<C> for TraceContext {
    fn encode<W: Write>(&self, encoder: &mut Encoder<W>, _: &mut C) -> Result<(), minicbor::encode::Error<W::Error>> {
        let mut bytes = [0; LEN];
        bytes[..16].copy_from_slice(&self.trace);
        bytes[16..24].copy_from_slice(&self.span);
        bytes[24] = self.flags;
        encoder.bytes(&bytes)?.ok()
    }
}

impl<'b, C> Decode<'b, C> for TraceContext {
    fn decode(decoder: &mut Decoder<'b>, _: &mut C) -> Result<Self, DecodeError> {
        let bytes = decoder.bytes()?;
        let (Some((trace, rest)), LEN) = (bytes.split_first_chunk::<16>(), bytes.len()) else {
            return Err(DecodeError::message("a trace context of another length"));
        };
        let (Some((span, _)), Some(flags)) = (rest.split_first_chunk::<8>(), bytes.last()) else {
            return Err(DecodeError::message("a trace context of another length"));
        };
        Self::new(*trace, *span, *flags).map_err(|_| DecodeError::message("a trace context without ids"))
    }
}

/// A run of a batch's facts and what led to the input that they were decided from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct CausedFacts {
    /// Place of the first of them in the batch.
    #[n(0)]
    pub from: u32,
    /// Place behind the last.
    #[n(1)]
    pub to: u32,
    /// The span that the input carried.
    #[n(2)]
    pub trace: TraceContext,
}

/// What led to a fact of a batch, by its place there; `None` if that is not known. The runs stand in order.
#[must_use]
pub fn cause_of(causes: &[CausedFacts], place: usize) -> Option<TraceContext> {
    let place = u32::try_from(place).ok()?;
    let after = causes.partition_point(|run| run.from <= place);
    causes[..after].last().filter(|run| place < run.to).map(|run| run.trace)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::batch::{from_bytes, to_bytes};

    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_survives_its_text_and_its_bytes() {
        let context: TraceContext = EXAMPLE.parse().unwrap();
        assert_eq!(context.to_string(), EXAMPLE);
        assert_eq!(from_bytes::<TraceContext>(&to_bytes(&context)).unwrap(), context);
        assert_eq!(TraceContext::of_header(Some(format!(" {EXAMPLE} ").as_bytes())), Some(context));
        assert!(TraceContext::of_header(None).or(TraceContext::of_header(Some(b"\xff"))).is_none());
    }

    #[test]
    fn what_is_no_traceparent_is_none() {
        let zero_span = "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01";
        let zero_trace = "00-00000000000000000000000000000000-00f067aa0ba902b7-01";
        let upper = EXAMPLE.to_uppercase();
        let (longer, last) = (format!("{EXAMPLE}-00"), EXAMPLE.replace("00-4", "ff-4"));
        for wrong in ["", "00", "é", &EXAMPLE[..54], zero_span, zero_trace, &upper, &longer, &last] {
            assert!(wrong.parse::<TraceContext>().is_err(), "{wrong}");
        }
        let later = format!("{}-more", EXAMPLE.replace("00-4", "01-4"));
        assert_eq!(later.parse::<TraceContext>(), EXAMPLE.parse(), "of a later version, what this one knows");
        assert!(from_bytes::<TraceContext>(&to_bytes(&minicbor::bytes::ByteArray::from([0u8; LEN]))).is_err());
    }

    #[test]
    fn a_fact_has_the_cause_of_the_run_it_stands_in() {
        let trace: TraceContext = EXAMPLE.parse().unwrap();
        let causes = [CausedFacts { from: 1, to: 3, trace }, CausedFacts { from: 3, to: 3, trace }];
        let found: Vec<bool> = (0..5).map(|place| cause_of(&causes, place).is_some()).collect();
        assert_eq!(found, [false, true, true, false, false]);
    }
}
