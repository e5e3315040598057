//! What Prometheus answers to an instant query whose result is one number.

use serde::Deserialize;

/// One number, at the time for which it was evaluated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// By Prometheus' clock, in seconds.
    pub at_s: f64,
    /// The value, never infinite and never NaN.
    pub value: f64,
}

/// An answer that is no number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// Not the JSON of its HTTP API.
    #[error(
        "this is no answer of Prometheus' HTTP API ({0}); the URL should be that of a Prometheus, for example http://127.0.0.1:9090"
    )]
    NotPrometheus(String),
    /// It refused the query.
    #[error("Prometheus refused the query: {0}")]
    Refused(String),
    /// Not what one of our queries gives.
    #[error("the query gave {0} where one number was expected; look at it with --explain")]
    NoNumber(String),
}

#[derive(Deserialize)]
struct Answer {
    status: String,
    data: Option<Data>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Data {
    #[serde(rename = "resultType")]
    result_type: String,
    result: serde_json::Value,
}

#[derive(Deserialize)]
struct Series {
    value: (f64, String),
}

/// The number of an answer; `None` if nothing matches the query.
pub fn sample(body: &[u8]) -> Result<Option<Sample>, AnswerError> {
    let foreign = |error: serde_json::Error| AnswerError::NotPrometheus(error.to_string());
    let answer: Answer = serde_json::from_slice(body).map_err(foreign)?;
    let data = match (answer.status.as_str(), answer.data) {
        ("success", Some(data)) => data,
        _ => return Err(AnswerError::Refused(answer.error.unwrap_or_else(|| "it does not say why".to_owned()))),
    };
    if data.result_type != "vector" {
        return Err(AnswerError::NoNumber(format!("a {}", data.result_type)));
    }
    let series: Vec<Series> = serde_json::from_value(data.result).map_err(foreign)?;
    let (at_s, text) = match series.as_slice() {
        [] => return Ok(None),
        [one] => (one.value.0, &one.value.1),
        many => return Err(AnswerError::NoNumber(format!("{} series", many.len()))),
    };
    let value = text.parse().ok().filter(|value: &f64| value.is_finite());
    let value = value.ok_or_else(|| AnswerError::NoNumber(format!("`{text}`")))?;
    Ok(Some(Sample { at_s, value }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn vector(series: &str) -> Vec<u8> {
        format!(r#"{{"status":"success","data":{{"resultType":"vector","result":[{series}]}}}}"#).into_bytes()
    }

    #[test]
    fn one_series_is_a_number_and_none_is_no_sample() {
        let one = sample(&vector(r#"{"metric":{},"value":[1700000000.5,"12"]}"#)).unwrap();
        assert_eq!(one, Some(Sample { at_s: 1_700_000_000.5, value: 12.0 }));
        assert_eq!(sample(&vector("")).unwrap(), None);
    }

    #[test]
    fn everything_else_says_what_it_is() {
        let two = r#"{"metric":{},"value":[1,"1"]},{"metric":{},"value":[1,"2"]}"#;
        let cases: [(Vec<u8>, &str); 5] = [
            (vector(two), "2 series"),
            (vector(r#"{"metric":{},"value":[1,"NaN"]}"#), "`NaN`"),
            (b"<html>".to_vec(), "no answer of Prometheus"),
            (br#"{"status":"error","errorType":"bad_data","error":"parse error at char 5"}"#.to_vec(), "char 5"),
            (br#"{"status":"success","data":{"resultType":"matrix","result":[]}}"#.to_vec(), "a matrix"),
        ];
        for (body, part) in cases {
            let error = sample(&body).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
