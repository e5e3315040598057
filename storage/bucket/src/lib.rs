//! An operator's look at the bucket behind an S3 store: whether it can do what Ebb needs, a rule for uploads that nobody completed, and
//! those uploads themselves. For `ebb store`, by `aws-sdk-s3`, because `object_store` knows no life-cycle rules, versioning or listings of
//! uploads. It must not read or write what Ebb keeps: data moves through the crate `storage` alone.
//!
//! Reading order: [`address`] (which bucket, and how it is reached), [`client`], [`fault`] (what a server's refusal means and what to do
//! about it), [`report`], [`check`], [`lifecycle`], [`uploads`].

pub mod address;
pub mod check;
pub mod client;
pub mod fault;
pub mod lifecycle;
mod probe;
pub mod report;
pub mod uploads;

pub use address::{Access, AddressError, BucketAddress};
pub use client::Bucket;
pub use fault::Fault;
