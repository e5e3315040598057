//! CSV: one row per line, one column the class, all others features. Every refusal names line and column.

use super::metadata::ElementType;
use super::source::{Records, plain};
use super::table::{ImportError, Imported, Row, RowKind, Split, Summary, import};
use csv::StringRecord;
use events_schema::DatasetName;
use events_schema::dataset::{DIMENSIONS_MAX, SAMPLE_ELEMENTS_MAX};
use object_store::ObjectStore;
use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

/// Most classes; more means that the label column is not one.
const CLASSES_MAX: u32 = 1_000_000;

/// Longest row: a million numbers written out in full are a third of it, and the reader keeps eight bytes for each of its fields.
const ROW_BYTES_MAX: u64 = 64 << 20;

/// Which column holds the class.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LabelColumn {
    /// The last one.
    #[default]
    Last,
    /// By its number, from 0.
    Index(usize),
    /// By its name in the header.
    Name(String),
}

/// Whether the first line names the columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Header {
    /// It does if none of its fields is a number.
    #[default]
    Detect,
    /// It does.
    Present,
    /// It does not.
    Absent,
}

/// How to read a CSV file.
#[derive(Debug, Clone, PartialEq)]
pub struct CsvOptions {
    /// Which column holds the class.
    pub label: LabelColumn,
    /// Whether the first line names the columns.
    pub header: Header,
    /// Between fields.
    pub delimiter: u8,
    /// Shape of a sample; `[features]` if not given.
    pub shape: Option<Vec<u32>>,
    /// How features are stored: bytes for whole numbers from 0 to 255, else 32-bit floats.
    pub element: ElementType,
    /// Features are multiplied by this when read.
    pub scale: f32,
    /// Hold out every k-th row, beginning with the first, as `NAME-test`.
    pub test_every: Option<u32>,
}

impl Default for CsvOptions {
    fn default() -> Self {
        Self {
            label: LabelColumn::Last,
            header: Header::Detect,
            delimiter: b',',
            shape: None,
            element: ElementType::F32,
            scale: 1.0,
            test_every: None,
        }
    }
}

/// Imports a CSV file, plain or gzip. Classes are whole numbers from 0, or names, which are numbered as they come.
pub async fn import_csv(
    store: &Arc<dyn ObjectStore>,
    name: &DatasetName,
    source: impl Read + Send + 'static,
    options: &CsvOptions,
) -> Result<Imported, ImportError> {
    let options = options.clone();
    import(store, name, options.test_every, move |split| read_csv(source, &options, split)).await
}

fn read_csv(
    source: impl Read + Send + 'static,
    options: &CsvOptions,
    split: &mut Split,
) -> Result<Summary, ImportError> {
    if !options.scale.is_finite() || options.scale == 0.0 {
        return Err(ImportError::Source(format!("scale {} is not a number other than 0", options.scale)));
    }
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .delimiter(options.delimiter)
        .trim(csv::Trim::All)
        .from_reader(Records::new(plain(source).map_err(ImportError::Read)?, ROW_BYTES_MAX));
    let mut record = StringRecord::new();
    let mut layout: Option<Layout> = None;
    let mut classes = Classes::default();
    while reader.read_record(&mut record).map_err(of_csv)? {
        reader.get_mut().next();
        let line = record.position().map_or(0, csv::Position::line);
        let layout = match &mut layout {
            Some(layout) => layout,
            None => {
                let (new, is_header) = Layout::of_first(&record, options)?;
                let layout = layout.insert(new);
                if is_header {
                    continue;
                }
                layout
            }
        };
        layout.push(line, &record, &mut classes, split)?;
    }
    let layout =
        layout.filter(|_| split.rows() > 0).ok_or_else(|| ImportError::Source("the file has no rows".to_owned()))?;
    let kind = RowKind::Classified { element: options.element, scale: options.scale, shape: layout.shape };
    // A class nobody has seen yet is legal; a single one is not a classification.
    Ok(Summary { kind, classes: classes.count.max(2), class_names: classes.names_in_order(), vocabulary: Vec::new() })
}

/// Which fields are what.
struct Layout {
    label: usize,
    fields: usize,
    names: Option<Vec<String>>,
    shape: Vec<u32>,
    element: ElementType,
    bytes: Vec<u8>,
    floats: Vec<f32>,
}

impl Layout {
    /// The layout, and whether the first record is a header.
    fn of_first(first: &StringRecord, options: &CsvOptions) -> Result<(Self, bool), ImportError> {
        let is_header = match options.header {
            Header::Present => true,
            Header::Absent => false,
            Header::Detect => first.iter().all(|field| field.parse::<f64>().is_err()),
        };
        let names: Option<Vec<String>> = is_header.then(|| first.iter().map(str::to_owned).collect());
        let fields = first.len();
        let label = match &options.label {
            LabelColumn::Last => fields - 1,
            LabelColumn::Index(index) if *index < fields => *index,
            LabelColumn::Index(index) => {
                return Err(ImportError::Source(format!(
                    "label column {index} does not exist: the file has {fields} columns, numbered from 0"
                )));
            }
            LabelColumn::Name(name) => {
                let names = names.as_ref().ok_or_else(|| {
                    ImportError::Source(format!(
                        "label column `{name}` cannot be found: the file has no header; give its number"
                    ))
                })?;
                let found = names.iter().position(|n| n == name);
                found.ok_or_else(|| {
                    ImportError::Source(format!("there is no column `{name}`; the header names {}", names.join(", ")))
                })?
            }
        };
        let features = fields - 1;
        if features == 0 {
            return Err(ImportError::Source(format!(
                "the file has one column only; is the delimiter `{}`?",
                char::from(options.delimiter)
            )));
        }
        let shape = options.shape.clone().unwrap_or_else(|| vec![features as u32]);
        let elements: u64 = shape.iter().map(|&n| u64::from(n)).product();
        if shape.is_empty()
            || shape.len() > DIMENSIONS_MAX
            || elements != features as u64
            || elements > SAMPLE_ELEMENTS_MAX
        {
            return Err(ImportError::Source(format!(
                "shape {shape:?} does not fit the {features} feature columns; expected 1 to {DIMENSIONS_MAX} dimensions whose product is {features}"
            )));
        }
        Ok((
            Self { label, fields, names, shape, element: options.element, bytes: Vec::new(), floats: Vec::new() },
            is_header,
        ))
    }

    fn push(
        &mut self,
        line: u64,
        record: &StringRecord,
        classes: &mut Classes,
        split: &mut Split,
    ) -> Result<(), ImportError> {
        if record.len() != self.fields {
            return Err(ImportError::Line {
                line,
                problem: format!("{} fields, expected {}", record.len(), self.fields),
            });
        }
        self.bytes.clear();
        self.floats.clear();
        let mut label = 0;
        for (index, field) in record.iter().enumerate() {
            let outcome = if index == self.label {
                classes.number(field).map(|number| label = number)
            } else {
                match self.element {
                    ElementType::U8 => byte(field).map(|value| self.bytes.push(value)),
                    ElementType::F32 => float(field).map(|value| self.floats.push(value)),
                }
            };
            outcome.map_err(|problem| ImportError::Value { line, column: self.column(index), problem })?;
        }
        split.push(match self.element {
            ElementType::U8 => Row::Bytes(&self.bytes, label),
            ElementType::F32 => Row::Floats(&self.floats, label),
        })
    }

    fn column(&self, index: usize) -> String {
        match self.names.as_ref().and_then(|names| names.get(index)) {
            Some(name) => format!("{} (`{name}`)", index + 1),
            None => (index + 1).to_string(),
        }
    }
}

fn byte(field: &str) -> Result<u8, String> {
    let whole = whole_number(field).and_then(|n| u8::try_from(n).ok());
    whole.ok_or_else(|| format!("`{}` is not a whole number from 0 to 255", shown(field)))
}

fn float(field: &str) -> Result<f32, String> {
    let value = field.parse::<f32>().ok().filter(|v| v.is_finite());
    value.ok_or_else(|| format!("`{}` is not a finite number", shown(field)))
}

fn whole_number(field: &str) -> Option<u32> {
    field.parse::<u32>().ok().or_else(|| {
        field
            .parse::<f64>()
            .ok()
            .filter(|v| v.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(v))
            .map(|v| v as u32)
    })
}

fn shown(field: &str) -> String {
    field.chars().take(40).collect()
}

fn of_csv(error: csv::Error) -> ImportError {
    let line = error.position().map_or(0, csv::Position::line);
    match error.into_kind() {
        csv::ErrorKind::Io(error) => ImportError::Read(error),
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            ImportError::Line { line, problem: format!("{len} fields, expected {expected_len}") }
        }
        csv::ErrorKind::Utf8 { err, .. } => ImportError::Line { line, problem: format!("not UTF-8 text: {err}") },
        other => ImportError::Line { line, problem: format!("not CSV: {other:?}") },
    }
}

/// Classes as they come: all numbers, or all names.
#[derive(Default)]
struct Classes {
    names: Option<BTreeMap<String, u32>>,
    count: u32,
}

impl Classes {
    fn number(&mut self, field: &str) -> Result<u32, String> {
        let too_many = |n: u32| {
            if n < CLASSES_MAX {
                Ok(n)
            } else {
                Err(format!("class {n} is not below {CLASSES_MAX}; is this the label column?"))
            }
        };
        if field.is_empty() {
            return Err("no class".to_owned());
        }
        if self.count == 0 && whole_number(field).is_none() {
            if field.parse::<f64>().is_ok() {
                return Err(format!("`{}` is not a class: expected a whole number from 0 or a name", shown(field)));
            }
            self.names = Some(BTreeMap::new());
        }
        let number = match &mut self.names {
            Some(names) => {
                let next = names.len() as u32;
                *names.entry(field.to_owned()).or_insert(next)
            }
            None => whole_number(field).ok_or_else(|| {
                format!("`{}` is not a class: expected a whole number from 0, as in the lines before", shown(field))
            })?,
        };
        let number = too_many(number)?;
        self.count = self.count.max(number + 1);
        Ok(number)
    }

    fn names_in_order(&self) -> Vec<String> {
        let mut names: Vec<(&String, &u32)> = self.names.iter().flatten().collect();
        names.sort_by_key(|(_, number)| **number);
        names.into_iter().map(|(name, _)| name.clone()).collect()
    }
}
