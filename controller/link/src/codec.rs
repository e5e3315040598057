//! Messages as bytes: the record format of `events-schema`, one record per message, so the stream and the log share one
//! decoder. Bytes that are no message end the stream. Next file: `accept.rs`.

use bytes::{Buf, BufMut};
use events_schema::batch::{from_bytes, to_bytes};
use std::marker::PhantomData;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Codec between any two record types: `E` is sent, `D` received.
pub(crate) struct RecordCodec<E, D>(PhantomData<fn(E) -> D>);

impl<E, D> Default for RecordCodec<E, D> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<E, D> Codec for RecordCodec<E, D>
where
    E: minicbor::Encode<()> + Send + 'static,
    D: for<'b> minicbor::Decode<'b, ()> + Send + 'static,
{
    type Encode = E;
    type Decode = D;
    type Encoder = RecordEncoder<E>;
    type Decoder = RecordDecoder<D>;

    fn encoder(&mut self) -> Self::Encoder {
        RecordEncoder(PhantomData)
    }

    fn decoder(&mut self) -> Self::Decoder {
        RecordDecoder(PhantomData)
    }
}

pub(crate) struct RecordEncoder<E>(PhantomData<fn(E)>);

impl<E: minicbor::Encode<()>> Encoder for RecordEncoder<E> {
    type Item = E;
    type Error = Status;

    fn encode(&mut self, item: E, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&to_bytes(&item));
        Ok(())
    }
}

pub(crate) struct RecordDecoder<D>(PhantomData<fn() -> D>);

impl<D: for<'b> minicbor::Decode<'b, ()>> Decoder for RecordDecoder<D> {
    type Item = D;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<D>, Status> {
        let record = buffer.copy_to_bytes(buffer.remaining());
        from_bytes(&record).map(Some).map_err(|e| Status::invalid_argument(e.to_string()))
    }
}
