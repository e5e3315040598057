//! What a server's agent says of the devices that are its slots. Written down as it was said: nothing is decided from it but whether a slot has one.

use minicbor::{Decode, Encode};
use serde::Serialize;

/// The device that a slot is.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct SlotDevice {
    /// Its name everywhere and always, as its driver says it; two slots that share a device have the same.
    #[n(0)]
    pub uuid: String,
    /// What it is, for people.
    #[n(1)]
    pub name: String,
    /// Its memory, in bytes.
    #[n(2)]
    pub memory_bytes: u64,
    /// The version of its driver, for people.
    #[n(3)]
    pub driver: String,
}
