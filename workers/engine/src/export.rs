//! The finished model as a safetensors file, and back. The last stop of the main path in this crate.
//!
//! The header is written here rather than by the safetensors crate, whose metadata is a hash map: the same model has to give
//! the same bytes. Tensors keep the replica's order, so the file's body is the flat parameters in little-endian bytes.

use crate::engine::{ParameterInfo, count};
use safetensors::{Dtype, SafeTensors};
use std::fmt::Write;

/// The header is padded with spaces to this, so that tensors lie aligned in a mapped file (as the safetensors crate does).
const HEADER_ALIGNMENT: usize = 8;

/// Why a file cannot be imported. All variants are refusals of the file.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// Refuse: not a safetensors file, or a damaged one.
    #[error("not a readable safetensors file")]
    Unreadable(#[source] safetensors::SafeTensorError),
    /// Refuse: another model's file.
    #[error("the file does not hold the model's parameters: {0}")]
    OtherModel(String),
}

/// The parameters as a safetensors file; `metadata` goes into `__metadata__`, in the order given, keys must differ.
/// `parameters` may be a whole replica: what follows the parameters is left out.
#[must_use]
pub fn export_model(parameters: &[f32], info: &[ParameterInfo], metadata: &[(&str, &str)]) -> Vec<u8> {
    let mut header = String::from("{\"__metadata__\":{");
    for (index, (key, value)) in metadata.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        header.push_str(comma);
        push_json_text(&mut header, key);
        header.push(':');
        push_json_text(&mut header, value);
    }
    header.push('}');
    for parameter in info {
        header.push(',');
        push_json_text(&mut header, &parameter.name);
        let range = parameter.range();
        // Debug of integers in a list is JSON.
        let (shape, offsets) = (&parameter.shape, [range.start * 4, range.end * 4]);
        let written = write!(header, ":{{\"dtype\":\"F32\",\"shape\":{shape:?},\"data_offsets\":{offsets:?}}}");
        debug_assert!(written.is_ok(), "writing to a string cannot fail");
    }
    header.push('}');
    while !header.len().is_multiple_of(HEADER_ALIGNMENT) {
        header.push(' ');
    }
    let body = &parameters[..count(info)];
    let mut file = Vec::with_capacity(8 + header.len() + body.len() * 4);
    file.extend_from_slice(&(header.len() as u64).to_le_bytes());
    file.extend_from_slice(header.as_bytes());
    file.extend(body.iter().flat_map(|value| value.to_le_bytes()));
    file
}

/// The flat parameters out of a file that holds exactly the parameters of `info`, by name, in any order.
pub fn import_model(file: &[u8], info: &[ParameterInfo]) -> Result<Vec<f32>, ImportError> {
    let tensors = SafeTensors::deserialize(file).map_err(ImportError::Unreadable)?;
    if tensors.len() != info.len() {
        return Err(ImportError::OtherModel(format!("{} tensors instead of {}", tensors.len(), info.len())));
    }
    let mut parameters = Vec::with_capacity(count(info));
    for parameter in info {
        let name = &parameter.name;
        let tensor = tensors.tensor(name).map_err(|_| ImportError::OtherModel(format!("`{name}` is missing")))?;
        if tensor.dtype() != Dtype::F32 || tensor.shape() != parameter.shape {
            let (dtype, shape) = (tensor.dtype(), tensor.shape());
            return Err(ImportError::OtherModel(format!(
                "`{name}` is {dtype:?} {shape:?} instead of F32 {:?}",
                parameter.shape
            )));
        }
        parameters.extend(tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
    }
    Ok(parameters)
}

fn push_json_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                // JSON escapes are UTF-16 units; control characters need one.
                let written = write!(out, "\\u{:04x}", u32::from(c));
                debug_assert!(written.is_ok(), "writing to a string cannot fail");
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn info() -> Vec<ParameterInfo> {
        let one = |name: &str, shape: Vec<usize>, offset| ParameterInfo { name: name.to_owned(), shape, offset };
        vec![one("b.weight", vec![2, 2], 0), one("a.bias", vec![3], 4)]
    }

    #[test]
    fn survives_the_round_trip_and_is_read_by_the_format_s_own_crate() {
        let parameters = [1.0, -2.0, 3.5, f32::MIN_POSITIVE, 0.0, -0.0, 7.0];
        let metadata = [("job", "digits \"quoted\" \\ \n ü"), ("class", "x")];
        let file = export_model(&[&parameters[..], &[9.0; 7]].concat(), &info(), &metadata);
        let found = import_model(&file, &info()).unwrap();
        assert!(found.iter().zip(parameters).all(|(a, b)| a.to_bits() == b.to_bits()) && found.len() == 7);
        let (_, header) = SafeTensors::read_metadata(&file).unwrap();
        let read = header.metadata().clone().unwrap();
        assert_eq!((read.len(), read["job"].as_str()), (2, metadata[0].1));
        assert_eq!(SafeTensors::deserialize(&file).unwrap().tensor("a.bias").unwrap().shape(), [3]);
        assert_eq!(file, export_model(&parameters, &info(), &metadata), "moments are left out, bytes are stable");
    }

    #[test]
    fn other_files_are_refused_by_name() {
        let file = export_model(&[0.0; 7], &info(), &[]);
        assert!(matches!(import_model(&file[..20], &info()), Err(ImportError::Unreadable(_))));
        let mut other = info();
        other[1].name = "c.bias".to_owned();
        assert!(import_model(&file, &other).unwrap_err().to_string().contains("`c.bias` is missing"));
        other = info();
        other[0].shape = vec![4];
        assert!(import_model(&file, &other).unwrap_err().to_string().contains("[2, 2] instead of F32 [4]"));
        assert!(import_model(&file, &info()[..1]).is_err());
    }
}
