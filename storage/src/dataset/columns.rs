//! Tensors in Arrow: which columns of a schema hold them, and taking them out of record batches. Pure; every refusal names the
//! column, its type and what would be right.

use super::metadata::{Columns, DatasetMetadata, ElementType};
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, Float32Type, Schema, UInt8Type, UInt32Type};
use events_schema::dataset::SampleShape;

/// Names that are taken for the label column if nobody names it.
const LABEL_NAMES: [&str; 5] = ["label", "labels", "target", "class", "y"];
/// Names that are taken for the token column if nobody names it.
const TOKEN_NAMES: [&str; 3] = ["tokens", "input_ids", "ids"];

/// Why a schema does not fit. All of them: refuse the registration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ColumnError {
    /// Named, but not there.
    #[error("there is no column `{name}`; the file has {found}")]
    Absent {
        /// As asked for.
        name: String,
        /// The columns that are there.
        found: String,
    },
    /// None, or several, could be meant.
    #[error("cannot tell which column holds the {role}: {candidates}; name it")]
    Ambiguous {
        /// What is looked for.
        role: &'static str,
        /// What was found instead of one.
        candidates: String,
    },
    /// Of a type that cannot hold it.
    #[error("column `{name}` of type {found} cannot hold {role}; expected {expected}")]
    Type {
        /// The column.
        name: String,
        /// Its type.
        found: String,
        /// What it should hold.
        role: &'static str,
        /// What would be right.
        expected: &'static str,
    },
    /// The schema does not say the shape.
    #[error(
        "column `{name}` of type {found} does not say its shape; declare it, for example `sample: {{kind: classified, shape: [1, 8, 8], classes: 10}}`"
    )]
    ShapeUnknown {
        /// The column.
        name: String,
        /// Its type.
        found: String,
    },
    /// Declared otherwise than stored.
    #[error("column `{name}` holds {found} elements per row, but the declared shape {declared:?} has {expected}")]
    ShapeDiffers {
        /// The column.
        name: String,
        /// Elements per row as stored.
        found: u64,
        /// As declared.
        declared: Vec<u32>,
        /// Elements of it.
        expected: u64,
    },
}

const TENSOR_EXPECTED: &str =
    "a fixed-size list of numbers (nested for more dimensions), or a list or binary column with a declared shape";
const LABEL_EXPECTED: &str = "an integer column";
const TOKENS_EXPECTED: &str = "a list of integers";

/// What a schema says about its tensor column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TensorColumn {
    pub name: String,
    pub shape: Vec<u32>,
    pub element: ElementType,
}

/// Finds the label column: the one named, else the one with a usual name, else the only integer one.
pub(crate) fn find_label(schema: &Schema, name: Option<&str>) -> Result<String, ColumnError> {
    let field = find(schema, name, "labels", &LABEL_NAMES, |t| t.is_integer())?;
    if field.data_type().is_integer() {
        Ok(field.name().clone())
    } else {
        Err(wrong_type(field, "labels", LABEL_EXPECTED))
    }
}

/// Finds the token column: the one named, else the one with a usual name, else the only list of integers.
pub(crate) fn find_tokens(schema: &Schema, name: Option<&str>) -> Result<String, ColumnError> {
    let holds = |t: &DataType| list_item(t).is_some_and(DataType::is_integer);
    let field = find(schema, name, "tokens", &TOKEN_NAMES, holds)?;
    if holds(field.data_type()) { Ok(field.name().clone()) } else { Err(wrong_type(field, "tokens", TOKENS_EXPECTED)) }
}

/// Finds the tensor column and its shape. `element` says how binary columns are to be read (bytes if nobody says).
pub(crate) fn find_features(
    schema: &Schema,
    name: Option<&str>,
    declared: Option<&[u32]>,
    element: Option<ElementType>,
) -> Result<TensorColumn, ColumnError> {
    let holds = |t: &DataType| {
        matches!(t, DataType::Binary | DataType::LargeBinary | DataType::FixedSizeBinary(_))
            || innermost(t).is_some_and(|(_, e)| e.is_numeric())
    };
    let field = find(schema, name, "features", &["features", "image", "x"], holds)?;
    if !holds(field.data_type()) {
        return Err(wrong_type(field, "a tensor", TENSOR_EXPECTED));
    }
    let unknown = || ColumnError::ShapeUnknown { name: field.name().clone(), found: field.data_type().to_string() };
    let (stored, element) = match field.data_type() {
        DataType::Binary | DataType::LargeBinary => (None, element.unwrap_or(ElementType::U8)),
        DataType::FixedSizeBinary(bytes) => {
            let element = element.unwrap_or(ElementType::U8);
            (Some(vec![(*bytes as u64 / element.bytes()) as u32]), element)
        }
        other => {
            let (dimensions, item) = innermost(other).ok_or_else(unknown)?;
            (dimensions, if *item == DataType::UInt8 { ElementType::U8 } else { ElementType::F32 })
        }
    };
    let elements = |shape: &[u32]| shape.iter().map(|&n| u64::from(n)).product::<u64>();
    let shape = match (declared, stored) {
        (None, None) => return Err(unknown()),
        (None, Some(stored)) => stored,
        (Some(declared), Some(stored)) if elements(declared) != elements(&stored) => {
            return Err(ColumnError::ShapeDiffers {
                name: field.name().clone(),
                found: elements(&stored),
                declared: declared.to_vec(),
                expected: elements(declared),
            });
        }
        (Some(declared), _) => declared.to_vec(),
    };
    if shape.is_empty() || elements(&shape) == 0 {
        return Err(unknown());
    }
    Ok(TensorColumn { name: field.name().clone(), shape, element })
}

fn find<'a>(
    schema: &'a Schema,
    name: Option<&str>,
    role: &'static str,
    usual: &[&str],
    holds: impl Fn(&DataType) -> bool,
) -> Result<&'a Field, ColumnError> {
    if let Some(name) = name {
        let found = || schema.fields().iter().map(|f| format!("`{}`", f.name())).collect::<Vec<_>>().join(", ");
        return schema.field_with_name(name).map_err(|_| ColumnError::Absent { name: name.to_owned(), found: found() });
    }
    if let Some(field) = usual.iter().find_map(|name| schema.field_with_name(name).ok()) {
        return Ok(field);
    }
    let candidates: Vec<&Field> = schema.fields().iter().map(AsRef::as_ref).filter(|f| holds(f.data_type())).collect();
    match candidates.as_slice() {
        [one] => Ok(one),
        [] => {
            let all = schema
                .fields()
                .iter()
                .map(|f| format!("`{}` ({})", f.name(), f.data_type()))
                .collect::<Vec<_>>()
                .join(", ");
            Err(ColumnError::Ambiguous { role, candidates: format!("none of the columns {all} can hold it") })
        }
        several => Err(ColumnError::Ambiguous {
            role,
            candidates: several.iter().map(|f| format!("`{}`", f.name())).collect::<Vec<_>>().join(" or "),
        }),
    }
}

fn wrong_type(field: &Field, role: &'static str, expected: &'static str) -> ColumnError {
    ColumnError::Type { name: field.name().clone(), found: field.data_type().to_string(), role, expected }
}

fn list_item(data_type: &DataType) -> Option<&DataType> {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => Some(item.data_type()),
        _ => None,
    }
}

/// The dimensions of nested fixed-size lists (`None` if one is of variable size) and the type inside; `None` if not a list.
fn innermost(data_type: &DataType) -> Option<(Option<Vec<u32>>, &DataType)> {
    let mut dimensions = Some(Vec::new());
    let mut inside = data_type;
    while let Some(item) = list_item(inside) {
        match (inside, &mut dimensions) {
            (DataType::FixedSizeList(_, n), Some(dimensions)) => dimensions.push(u32::try_from(*n).ok()?),
            _ => dimensions = None,
        }
        inside = item;
    }
    (inside != data_type).then_some((dimensions, inside))
}

/// Some rows, decoded, in memory.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Block {
    Classified { features: Elements, labels: Vec<u32> },
    Tokens(Vec<u32>),
}

/// Elements row after row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Elements {
    U8(Vec<u8>),
    F32(Vec<f32>),
}

impl Block {
    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> u64 {
        let count = match self {
            Block::Classified { features: Elements::U8(v), labels } => v.len() + 4 * labels.len(),
            Block::Classified { features: Elements::F32(v), labels } => 4 * v.len() + 4 * labels.len(),
            Block::Tokens(v) => 4 * v.len(),
        };
        count as u64
    }
}

/// Takes a block out of record batches. Errors are texts for the error that names the object.
pub(crate) struct BlockBuilder<'a> {
    metadata: &'a DatasetMetadata,
    block: Block,
    rows: usize,
}

impl<'a> BlockBuilder<'a> {
    pub(crate) fn new(metadata: &'a DatasetMetadata) -> Self {
        let block = match &metadata.columns {
            Columns::Classified { features, .. } => {
                let features = match features.element {
                    ElementType::U8 => Elements::U8(Vec::new()),
                    ElementType::F32 => Elements::F32(Vec::new()),
                };
                Block::Classified { features, labels: Vec::new() }
            }
            Columns::Tokens { .. } => Block::Tokens(Vec::new()),
        };
        Self { metadata, block, rows: 0 }
    }

    pub(crate) fn push(&mut self, batch: &RecordBatch) -> Result<(), String> {
        let column = |name: &str| batch.column_by_name(name).ok_or_else(|| format!("column `{name}` is missing"));
        let row_elements = self.metadata.row_elements() as usize;
        self.rows += batch.num_rows();
        match (&mut self.block, &self.metadata.columns, &self.metadata.sample) {
            (
                Block::Classified { features, labels },
                Columns::Classified { features: tensor, label },
                SampleShape::Classified { classes, .. },
            ) => {
                let named = |e| format!("column `{}`: {e}", tensor.name);
                push_elements(features, column(&tensor.name)?, row_elements).map_err(named)?;
                push_bounded(labels, column(label)?, *classes).map_err(|e| format!("column `{label}`: {e}"))
            }
            (Block::Tokens(tokens), Columns::Tokens { tokens: name }, SampleShape::Tokens { vocabulary, .. }) => {
                let flat = flatten(column(name)?, row_elements).map_err(|e| format!("column `{name}`: {e}"))?;
                push_bounded(tokens, &flat, *vocabulary).map_err(|e| format!("column `{name}`: {e}"))
            }
            _ => Err("sample and columns are of different kinds".to_owned()),
        }
    }

    /// The block, if it has so many rows.
    pub(crate) fn finish(self, rows: usize) -> Result<Block, String> {
        if self.rows == rows { Ok(self.block) } else { Err(format!("{} rows where {rows} were registered", self.rows)) }
    }
}

fn push_elements(out: &mut Elements, column: &ArrayRef, row_elements: usize) -> Result<(), String> {
    if let Some(rows) = binary_rows(column)? {
        for row in rows {
            match out {
                Elements::U8(out) if row.len() == row_elements => out.extend_from_slice(row),
                Elements::F32(out) if row.len() == 4 * row_elements => {
                    out.extend(row.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)))
                }
                Elements::U8(_) | Elements::F32(_) => {
                    return Err(format!("a row of {} bytes does not hold {row_elements} elements", row.len()));
                }
            }
        }
        return Ok(());
    }
    let flat = flatten(column, row_elements)?;
    match out {
        Elements::U8(out) => out.extend_from_slice(cast(&flat, &DataType::UInt8)?.as_primitive::<UInt8Type>().values()),
        Elements::F32(out) => {
            out.extend_from_slice(cast(&flat, &DataType::Float32)?.as_primitive::<Float32Type>().values())
        }
    }
    Ok(())
}

/// The rows of a binary column; `None` if it is of another type.
fn binary_rows(column: &ArrayRef) -> Result<Option<Vec<&[u8]>>, String> {
    if matches!(column.data_type(), DataType::Binary | DataType::LargeBinary | DataType::FixedSizeBinary(_))
        && column.null_count() > 0
    {
        return Err("holds nulls".to_owned());
    }
    Ok(match column.data_type() {
        DataType::Binary => Some(column.as_binary::<i32>().iter().flatten().collect()),
        DataType::LargeBinary => Some(column.as_binary::<i64>().iter().flatten().collect()),
        DataType::FixedSizeBinary(_) => Some(column.as_fixed_size_binary().iter().flatten().collect()),
        _ => None,
    })
}

/// Integers below a bound.
fn push_bounded(out: &mut Vec<u32>, column: &ArrayRef, bound: u32) -> Result<(), String> {
    if !column.data_type().is_integer() {
        return Err(format!("is of type {} instead of integers", column.data_type()));
    }
    let values = cast(column, &DataType::UInt32)?;
    let values = values.as_primitive::<UInt32Type>().values();
    if let Some(wrong) = values.iter().find(|&&v| v >= bound) {
        return Err(format!("holds {wrong}, which is not below {bound} as registered"));
    }
    out.extend_from_slice(values);
    Ok(())
}

fn cast(column: &ArrayRef, to: &DataType) -> Result<ArrayRef, String> {
    if column.null_count() > 0 {
        return Err("holds nulls".to_owned());
    }
    // Not `safe`: a value that does not fit is an error, never a null.
    cast_with_options(column, to, &CastOptions { safe: false, ..CastOptions::default() }).map_err(|e| e.to_string())
}

/// Takes all lists off a column and checks that every row holds `row_elements`.
fn flatten(column: &ArrayRef, row_elements: usize) -> Result<ArrayRef, String> {
    let rows = column.len();
    let mut flat = ArrayRef::clone(column);
    while list_item(flat.data_type()).is_some() {
        if flat.null_count() > 0 {
            return Err("holds nulls".to_owned());
        }
        flat = match flat.data_type() {
            DataType::FixedSizeList(..) => ArrayRef::clone(flat.as_fixed_size_list().values()),
            DataType::List(_) => unlisted(flat.as_list::<i32>())?,
            _ => unlisted(flat.as_list::<i64>())?,
        };
    }
    if flat.len() == rows * row_elements {
        Ok(flat)
    } else {
        Err(format!("{} elements in {rows} rows where {row_elements} per row were registered", flat.len()))
    }
}

/// The values of a list column whose type lets lengths vary, but whose rows all have the same.
fn unlisted<O: arrow::array::OffsetSizeTrait>(list: &arrow::array::GenericListArray<O>) -> Result<ArrayRef, String> {
    let offsets = list.value_offsets();
    let length = |row: usize| (offsets[row + 1] - offsets[row]).as_usize();
    if let Some(row) = (1..list.len()).find(|&row| length(row) != length(0)) {
        return Err(format!(
            "row {row} has {} elements, row 0 has {}; all rows must have the same number",
            length(row),
            length(0)
        ));
    }
    let (first, end) = (offsets[0].as_usize(), offsets[offsets.len() - 1].as_usize());
    Ok(list.values().slice(first, end - first))
}
