//! A job spec as the document that parses to it, and a job spec out of bytes: both by the rules of `job.rs`, so that there are no others.

use crate::job::{JobFields, JobSpec, Length, NO_DATASET, Shuffle};
use minicbor::Decode;
use serde_json::Value;

// By the same rules as a submitted document, so that no record holds a spec that could not have been given.
impl<'b, C> Decode<'b, C> for JobSpec {
    fn decode(d: &mut minicbor::Decoder<'b>, context: &mut C) -> Result<Self, minicbor::decode::Error> {
        let at = d.position();
        let mut fields = JobFields::decode(d, context)?;
        if fields.model.gang().is_some() {
            fields.dataset = fields.dataset.filter(|name| name.as_str() != NO_DATASET);
        }
        let spec = Self(fields);
        match Self::parse(&spec.document()) {
            Ok(parsed) if parsed == spec => Ok(spec),
            Ok(_) => Err(minicbor::decode::Error::message("a job spec that says something else than it means").at(at)),
            Err(problems) => Err(minicbor::decode::Error::message(problems).at(at)),
        }
    }
}

impl JobSpec {
    /// The document that parses to this spec, with every default written out.
    #[must_use]
    pub fn document(&self) -> Value {
        let mut document = serde_json::to_value(self).unwrap_or(Value::Null);
        if let Value::Object(fields) = &mut document {
            fields.retain(|_, value| !value.is_null());
            if let Some(Value::Object(evaluation)) = fields.get_mut("evaluation") {
                evaluation.retain(|_, value| !value.is_null());
            }
            fields.remove("length");
            let (name, length) = match self.length {
                Length::Epochs(epochs) => ("epochs", u64::from(epochs)),
                Length::Steps(steps) => ("steps", steps),
            };
            fields.insert(name.to_owned(), length.into());
            if let Shuffle::Window { samples } = self.shuffle {
                fields.insert("shuffle".to_owned(), serde_json::json!({"window": samples}));
            }
        }
        document
    }
}
