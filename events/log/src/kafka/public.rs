//! Public events on their topic, as CloudEvents in the Kafka binding's binary mode: attributes are headers, the value is the data, the key is the subject. Any Kafka
//! client reads them. What they say is `events/public`; who publishes them is the controller (`controller/server/src/projector.rs`).

use super::follow::Place;
use super::{QUEUE_WAIT, Shared, append_error};
use crate::{AppendError, BoxFuture, PublicMessage, PublicTopic, ReadError, Stream};
use events_schema::{Cell, Offset};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::FutureRecord;
use std::sync::Arc;

/// The header that an event is known by.
const ID_HEADER: &str = "ce_id";
/// Records looked at for the newest event: the end of a topic that others may also have written to.
const NEWEST_RECORDS: u64 = 64;

/// The topic `PREFIX.public` of a log.
pub(super) struct KafkaPublic(pub(super) Arc<Shared>);

impl KafkaPublic {
    async fn newest(&self, cell: Cell) -> Result<Option<String>, ReadError> {
        let place = self.0.place(Stream::Public, cell, Offset(0))?;
        let shared = Arc::clone(&self.0);
        let read = tokio::task::spawn_blocking(move || {
            let (first, end) = shared.watermarks(&place)?;
            let from = Offset(end.0.saturating_sub(NEWEST_RECORDS)).max(first);
            shared.readers.newest(&Place { offset: from, ..place }, end, ID_HEADER)
        });
        let read = read.await.map_err(|panic| ReadError::Unavailable(Arc::new(panic)))?;
        let newest = read.map_err(|error| ReadError::Unavailable(Arc::new(error)))?;
        Ok(newest.and_then(|bytes| String::from_utf8(bytes).ok()))
    }

    async fn publish(&self, cell: Cell, message: PublicMessage) -> Result<(), AppendError> {
        let place = self
            .0
            .place(Stream::Public, cell, Offset(0))
            .map_err(|_| AppendError::NoSuchCell { cell, cells: self.0.url.cells })?;
        let header = |headers: OwnedHeaders, (key, value): &(&str, String)| {
            headers.insert(Header { key, value: Some(value.as_str()) })
        };
        let headers = OwnedHeaders::new_with_capacity(message.headers.len());
        let headers = message.headers.iter().fold(headers, header);
        let record = FutureRecord::to(&place.topic)
            .partition(place.partition)
            .key(message.key.as_str())
            .payload(message.data.as_slice())
            .headers(headers);
        match self.0.producer().send(record, QUEUE_WAIT).await {
            Ok(_) => Ok(()),
            Err((error, _)) => {
                self.0.replace_producer();
                Err(append_error(error, message.data.len()))
            }
        }
    }
}

impl PublicTopic for KafkaPublic {
    fn newest(&self, cell: Cell) -> BoxFuture<'_, Result<Option<String>, ReadError>> {
        Box::pin(self.newest(cell))
    }

    fn publish(&self, cell: Cell, message: PublicMessage) -> BoxFuture<'_, Result<(), AppendError>> {
        Box::pin(self.publish(cell, message))
    }
}
