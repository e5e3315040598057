//! The finished model: one safetensors file that other tools load, made by the engine and kept here as it is.

use crate::keys;
use crate::object::{Object, WholeError};
use crate::retry::StoreFault;
use bytes::Bytes;
use events_schema::JobId;
use object_store::ObjectStore;
use std::sync::Arc;

/// Most bytes of a model: 32-bit parameters of the largest one, and a header.
pub(crate) const MODEL_BYTES_MAX: u64 = 4 * events_schema::job::PARAMETERS_MAX + (16 << 20);

/// Writes a finished model; durable when this returns. The same job always ends in the same bytes, so repeating is harmless.
pub async fn write_model(store: &Arc<dyn ObjectStore>, job: &JobId, file: impl Into<Bytes>) -> Result<(), StoreFault> {
    let file = file.into();
    Object::of_key(store, &keys::model(job)).put(file.len() as u64, || std::iter::once(file.clone())).await
}

/// Reads a finished model.
pub async fn read_model(store: &Arc<dyn ObjectStore>, job: &JobId) -> Result<Bytes, WholeError> {
    Object::of_key(store, &keys::model(job)).whole(MODEL_BYTES_MAX).await
}
