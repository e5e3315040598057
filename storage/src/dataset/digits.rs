//! The handwritten digits that ship with the product: 1,797 images of 8 by 8, 360 of them held out. Origin and licence stand in
//! `../../data/README.md`.

use super::metadata::ElementType;
use super::save_metadata;
use super::table::{ImportError, Imported, RowKind, Summary, metadata_of, put_part};
use bytes::Bytes;
use events_schema::DatasetName;
use events_schema::dataset::{DatasetInfo, SampleShape};
use object_store::ObjectStore;
use std::sync::Arc;

/// Name of the training rows.
pub const DIGITS: &str = "digits";
/// Name of the held-out rows.
pub const DIGITS_TEST: &str = "digits-test";
/// How many there are to train on.
pub const DIGITS_ROWS: u64 = 1_437;
/// An image's channels, height and width.
const SHAPE: [u32; 3] = [1, 8, 8];
/// One for each digit.
const CLASSES: u32 = 10;

const TRAIN_FILE: &[u8] = include_bytes!("../../data/digits.parquet");
const TEST_FILE: &[u8] = include_bytes!("../../data/digits-test.parquet");
/// Pixels are counts from 0 to 16; a model sees 0 to 1.
const SCALE: f32 = 1.0 / 16.0;

/// What a row of both holds.
#[must_use]
pub fn digits_sample() -> SampleShape {
    SampleShape::Classified { shape: SHAPE.to_vec(), classes: CLASSES }
}

/// Puts the digits into a store, as `digits` (1,437 rows) and `digits-test` (360 rows). Repeating it changes nothing.
pub async fn register_digits(store: &Arc<dyn ObjectStore>) -> Result<Imported, ImportError> {
    let dataset = put_file(store, DIGITS, TRAIN_FILE).await?;
    let test = put_file(store, DIGITS_TEST, TEST_FILE).await?;
    Ok(Imported { dataset, test: Some(test) })
}

async fn put_file(store: &Arc<dyn ObjectStore>, name: &str, file: &'static [u8]) -> Result<DatasetInfo, ImportError> {
    let name = DatasetName::parse(name)?;
    let partition = put_part(store, &name, Bytes::from_static(file)).await?;
    let kind = RowKind::Classified { element: ElementType::U8, scale: SCALE, shape: SHAPE.to_vec() };
    let summary = Summary { kind, classes: CLASSES, class_names: Vec::new(), vocabulary: Vec::new() };
    let rows = partition.blocks.iter().map(|b| u64::from(b.rows)).sum();
    Ok(save_metadata(store, name, &metadata_of(&summary, rows, vec![partition])).await?)
}
