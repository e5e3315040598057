//! The first tensor in which two safetensors files differ. Reads both as they come, one tensor's piece of each in memory; knows nothing of jobs.

use super::document::{FirstTensor, Tensors};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};

/// Longest header that is read: of a model of a million tensors.
const HEADER_BYTES_MAX: u64 = 256 << 20;
/// Bytes of each file that are compared at once.
const PIECE_BYTES: usize = 1 << 20;

/// Why two files cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum TensorsError {
    /// One of them cannot be read.
    #[error("a model cannot be read")]
    Read(#[from] io::Error),
    /// One of them is no safetensors file.
    #[error("a model is no safetensors file: {0}")]
    Malformed(&'static str),
}

/// A tensor's place in its file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    name: String,
    /// Type and shape, as they stand in the header.
    form: (Value, Value),
    /// Bytes of one element.
    element_bytes: u64,
    /// From the start of the file.
    begin: u64,
    bytes: u64,
}

/// What differs between a recorded model and one that was computed now, both of a step.
pub fn compare<A: Read + Seek, B: Read + Seek>(
    at_step: u64,
    recorded: &mut A,
    now: &mut B,
) -> Result<Tensors, TensorsError> {
    let (before, after) = (places(recorded)?, places(now)?);
    let mut added: BTreeMap<&str, &Place> = after.iter().map(|place| (place.name.as_str(), place)).collect();
    let mut found = Tensors { at_step, first: None, different: 0, all: before.len() as u64 };
    for place in &before {
        let first = match added.remove(place.name.as_str()) {
            Some(other) if other.form == place.form && other.bytes == place.bytes => {
                first_element(recorded, place, now, other)?
            }
            other => Some(other_form(&place.name, Some(place), other)),
        };
        found.different += u64::from(first.is_some());
        found.first = found.first.or(first);
    }
    found.different += added.len() as u64;
    found.first =
        found.first.or_else(|| added.into_values().next().map(|place| other_form(&place.name, None, Some(place))));
    Ok(found)
}

/// A tensor that is not of one form in both models, or not in both.
fn other_form(name: &str, recorded: Option<&Place>, now: Option<&Place>) -> FirstTensor {
    let form =
        |place: Option<&Place>| place.map_or_else(|| "none".to_owned(), |p| format!("{} {}", p.form.0, p.form.1));
    FirstTensor { name: name.to_owned(), element: None, recorded: form(recorded), recomputed: form(now) }
}

/// The tensors of a file in the order of their bytes.
fn places(file: &mut (impl Read + Seek)) -> Result<Vec<Place>, TensorsError> {
    let mut length = [0; 8];
    file.seek(SeekFrom::Start(0))?;
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > HEADER_BYTES_MAX {
        return Err(TensorsError::Malformed("its header is longer than any that is written"));
    }
    let mut header = Vec::new();
    file.take(length).read_to_end(&mut header)?;
    let header: Map<String, Value> =
        serde_json::from_slice(&header).map_err(|_| TensorsError::Malformed("its header is no JSON object"))?;
    let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__");
    let mut places = tensors.map(|(name, tensor)| place(name, &tensor, 8 + length)).collect::<Result<Vec<_>, _>>()?;
    places.sort_by(|a, b| (a.begin, &a.name).cmp(&(b.begin, &b.name)));
    Ok(places)
}

fn place(name: String, tensor: &Value, data: u64) -> Result<Place, TensorsError> {
    let wrong = TensorsError::Malformed("a tensor has no place in it");
    let offset = |index: usize| tensor["data_offsets"][index].as_u64();
    let (Some(begin), Some(end)) = (offset(0), offset(1)) else { return Err(wrong) };
    let Some(bytes) = end.checked_sub(begin) else { return Err(wrong) };
    let shape = tensor["shape"].as_array().map(Vec::as_slice).unwrap_or_default();
    let elements = shape.iter().try_fold(1u64, |all, dimension| all.checked_mul(dimension.as_u64()?));
    let element_bytes = bytes.checked_div(elements.unwrap_or(0)).unwrap_or(1).max(1);
    let form = (tensor["dtype"].clone(), tensor["shape"].clone());
    Ok(Place { name, form, element_bytes, begin: data.saturating_add(begin), bytes })
}

/// The first element in which a tensor of both files differs.
fn first_element<A: Read + Seek, B: Read + Seek>(
    recorded: &mut A,
    a: &Place,
    now: &mut B,
    b: &Place,
) -> Result<Option<FirstTensor>, TensorsError> {
    recorded.seek(SeekFrom::Start(a.begin))?;
    now.seek(SeekFrom::Start(b.begin))?;
    // Whole elements at a time.
    let element = usize::try_from(a.element_bytes).unwrap_or(1);
    let piece = (PIECE_BYTES / element).max(1) * element;
    let (mut mine, mut other) = (vec![0; piece], vec![0; piece]);
    let mut done = 0;
    while done < a.bytes {
        let length = usize::try_from(a.bytes - done).unwrap_or(piece).min(piece);
        let (mine, other) = (&mut mine[..length], &mut other[..length]);
        recorded.read_exact(mine)?;
        now.read_exact(other)?;
        if let Some(at) = mine.iter().zip(other.iter()).position(|(a, b)| a != b) {
            let place = at / element * element;
            let hex = |bytes: &[u8]| bytes[place..].iter().take(element).map(|byte| format!("{byte:02x}")).collect();
            return Ok(Some(FirstTensor {
                name: a.name.clone(),
                element: Some((done + place as u64) / a.element_bytes),
                recorded: hex(mine),
                recomputed: hex(other),
            }));
        }
        done += length as u64;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use safetensors::tensor::{Dtype, TensorView, serialize};
    use std::io::Cursor;

    fn file(tensors: &[(&str, Vec<f32>)]) -> Cursor<Vec<u8>> {
        let bytes: Vec<Vec<u8>> =
            tensors.iter().map(|(_, values)| values.iter().flat_map(|value| value.to_le_bytes()).collect()).collect();
        let views = tensors
            .iter()
            .zip(&bytes)
            .map(|((name, values), bytes)| (*name, TensorView::new(Dtype::F32, vec![values.len()], bytes).unwrap()));
        Cursor::new(serialize(views, None).unwrap())
    }

    #[test]
    fn equal_models_differ_in_nothing() {
        let tensors = [("a.weight", vec![1.0, 2.0]), ("b.bias", vec![-0.0])];
        let found = compare(9, &mut file(&tensors), &mut file(&tensors)).unwrap();
        assert_eq!(found, Tensors { at_step: 9, first: None, different: 0, all: 2 });
    }

    /// Another sign of a zero, and an element beyond the first piece: bits are compared, not numbers, and all of them.
    #[test]
    fn the_first_tensor_and_element_are_named() {
        let long = vec![0.5f32; PIECE_BYTES / 4 + 10];
        let mut changed = long.clone();
        changed[PIECE_BYTES / 4 + 3] = 0.25;
        let before = [("a.weight", long), ("b.bias", vec![3.0, 0.0])];
        let after = [("a.weight", changed), ("b.bias", vec![3.0, -0.0])];
        let found = compare(9, &mut file(&before), &mut file(&after)).unwrap();
        assert_eq!((found.different, found.all), (2, 2));
        let first = found.first.unwrap();
        assert_eq!((first.name.as_str(), first.element), ("a.weight", Some(PIECE_BYTES as u64 / 4 + 3)));
        assert_eq!((first.recorded.as_str(), first.recomputed.as_str()), ("0000003f", "0000803e"));
        let same_first = [after[0].clone(), before[1].clone()];
        let found = compare(9, &mut file(&same_first), &mut file(&after)).unwrap();
        assert_eq!(found.first.map(|first| (first.name, first.element)), Some(("b.bias".to_owned(), Some(1))));
    }

    #[test]
    fn tensors_of_another_form_or_of_one_model_alone_are_named() {
        let one = |name: &str, values: Vec<f32>| file(&[(name, values)]);
        let found = compare(1, &mut one("a", vec![1.0]), &mut one("a", vec![1.0, 2.0])).unwrap();
        assert_eq!(found.first.as_ref().map(|first| first.recorded.as_str()), Some(r#""F32" [1]"#));
        let found = compare(1, &mut one("a", vec![1.0]), &mut one("b", vec![1.0])).unwrap();
        assert_eq!((found.different, found.first.unwrap().recomputed.as_str()), (2, "none"));
    }

    #[test]
    fn what_is_no_model_is_said() {
        let good = [("a", vec![1.0])];
        for bad in [vec![255; 8], vec![0; 3], [vec![2, 0, 0, 0, 0, 0, 0, 0], b"[]".to_vec()].concat()] {
            assert!(compare(1, &mut file(&good), &mut Cursor::new(bad)).is_err());
        }
    }
}
