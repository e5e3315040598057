//! What the `OTEL_*` variables ask for. Those that the OpenTelemetry SDK reads by itself (names, samplers, batch sizes, headers, time-outs) are
//! left to it; here is what decides whether anything is exported at all, and what it would pass over in silence.

/// What is exported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Exports {
    pub traces: bool,
    pub metrics: bool,
    pub logs: bool,
}

/// Why telemetry cannot be set up. Stop: whoever set the variable wants to see something.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// A variable asks for something that this build has not.
    #[error("{name} is `{value}`: expected {expected}")]
    Variable {
        /// Its name.
        name: String,
        /// As set.
        value: String,
        /// What would do.
        expected: &'static str,
    },
    /// An exporter cannot be made of what the variables say.
    #[error("telemetry cannot be exported as the OTEL_EXPORTER_OTLP_ variables say")]
    Exporter(#[from] opentelemetry_otlp::ExporterBuildError),
    /// The client cannot be made.
    #[error("the client for exporting telemetry cannot be made")]
    Client(#[from] reqwest::Error),
    /// The registry of metrics refuses the exporter.
    #[error("metrics cannot be kept")]
    Metrics(#[from] opentelemetry_sdk::error::OTelSdkError),
}

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// What variables ask for; `get` gives those that are set.
pub(crate) fn exports(get: &dyn Fn(&str) -> Option<String>) -> Result<Exports, TelemetryError> {
    let set = |name: &str| get(name).filter(|value| !value.is_empty());
    if set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Ok(Exports::default());
    }
    let wanted = |signal: &str| -> Result<bool, TelemetryError> {
        let name = format!("OTEL_{signal}_EXPORTER");
        let asked = match set(&name).as_deref() {
            None | Some("otlp") => true,
            Some("none") => false,
            Some(other) => {
                let expected = "otlp or none (metrics are also at GET /metrics, whatever it says)";
                return Err(TelemetryError::Variable { name, value: other.to_owned(), expected });
            }
        };
        let own = format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT");
        let on = asked && (set(ENDPOINT).is_some() || set(&own).is_some());
        for name in [format!("OTEL_EXPORTER_OTLP_{signal}_PROTOCOL"), "OTEL_EXPORTER_OTLP_PROTOCOL".to_owned()] {
            if let Some(value) = set(&name).filter(|value| on && value != "http/protobuf") {
                let expected = "http/protobuf, which every collector takes (port 4318)";
                return Err(TelemetryError::Variable { name, value, expected });
            }
        }
        Ok(on)
    };
    Ok(Exports { traces: wanted("TRACES")?, metrics: wanted("METRICS")?, logs: wanted("LOGS")? })
}

/// Who speaks: as `OTEL_SERVICE_NAME` says, or `service.name` in `OTEL_RESOURCE_ATTRIBUTES`, or the role. What is empty says nothing.
pub(crate) fn service_name(variable: Option<String>, attribute: Option<String>, role: &str) -> String {
    let said = |name: &String| !name.is_empty();
    variable.filter(said).or(attribute.filter(said)).unwrap_or_else(|| role.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn of(set: &[(&str, &str)]) -> Result<Exports, TelemetryError> {
        exports(&|name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn without_an_endpoint_nothing_is_exported() {
        assert_eq!(of(&[]).unwrap(), Exports::default());
        assert_eq!(of(&[(ENDPOINT, "")]).unwrap(), Exports::default());
        assert_eq!(of(&[("OTEL_TRACES_EXPORTER", "otlp"), ("OTEL_SERVICE_NAME", "x")]).unwrap(), Exports::default());
    }

    /// An attribute was overwritten by the role, and an empty variable made the service an unknown one.
    #[test]
    fn a_service_has_the_name_that_it_is_given() {
        let name = |variable: Option<&str>, attribute: Option<&str>| {
            service_name(variable.map(str::to_owned), attribute.map(str::to_owned), "ebb")
        };
        assert_eq!(name(None, None), "ebb");
        assert_eq!(name(Some(""), Some("")), "ebb");
        assert_eq!(name(Some(""), Some("theirs")), "theirs");
        assert_eq!(name(Some("mine"), Some("theirs")), "mine");
    }

    #[test]
    fn an_endpoint_turns_on_what_it_is_for() {
        let all = Exports { traces: true, metrics: true, logs: true };
        let endpoint = (ENDPOINT, "http://localhost:4318");
        assert_eq!(of(&[endpoint]).unwrap(), all);
        assert_eq!(of(&[endpoint, ("OTEL_SDK_DISABLED", "TRUE")]).unwrap(), Exports::default());
        assert_eq!(of(&[endpoint, ("OTEL_LOGS_EXPORTER", "none")]).unwrap(), Exports { logs: false, ..all });
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://localhost:4318/v1/traces");
        assert_eq!(of(&[traces]).unwrap(), Exports { traces: true, ..Exports::default() });
    }

    #[test]
    fn what_this_build_has_not_is_said_by_name() {
        let endpoint = (ENDPOINT, "http://localhost:4318");
        for wrong in [("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), ("OTEL_TRACES_EXPORTER", "zipkin")] {
            let said = of(&[endpoint, wrong]).unwrap_err().to_string();
            assert!(said.contains(wrong.0) && said.contains(wrong.1) && said.contains("expected"), "{said}");
        }
    }
}
