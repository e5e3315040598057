//! Bytes of what copies of a state share, because it is large and seldom changes: just those of what is shared.

use minicbor::encode::Write;
use minicbor::{Decode, Decoder, Encode, Encoder};
use std::sync::Arc;

pub(super) fn encode<C, T: Encode<C>, W: Write>(
    shared: &Arc<T>,
    e: &mut Encoder<W>,
    ctx: &mut C,
) -> Result<(), minicbor::encode::Error<W::Error>> {
    shared.as_ref().encode(e, ctx)
}

pub(super) fn decode<'b, C, T: Decode<'b, C>>(
    d: &mut Decoder<'b>,
    ctx: &mut C,
) -> Result<Arc<T>, minicbor::decode::Error> {
    T::decode(d, ctx).map(Arc::new)
}
