//! Gradients are right: against differences of the loss, for empty batches, in what training does with them, and in what is
//! refused.

use crate::support::{self, cases, scattered, spec};
use events_schema::dataset::{SampleShape, Samples};
use events_schema::job::PARAMETERS_MAX;
use events_schema::{Rank, Step};
use serde_json::json;
use workers_engine::{BuildError, EngineError, RandomKey, Sums, build, parameter_count};

const RANDOM_KEY: RandomKey = RandomKey { seed: 3, rank: Rank(1), step: Step(7) };

#[test]
fn every_parameters_gradient_is_the_slope_of_the_loss() {
    for case in cases(0.0).into_iter().chain(cases(0.3)) {
        let mut engine = case.engine();
        let info = engine.parameter_info().to_vec();
        let mut parameters = engine.initial_parameters();
        // Away from the start, where biases are zero and positions of the gpt barely matter.
        parameters.iter_mut().zip(scattered(1_000_000)).for_each(|(p, s)| *p += 0.1 * s);
        let mut gradient = vec![f32::NAN; parameters.len()];
        let mut unused = gradient.clone();
        engine.gradient(&parameters, &case.samples, RANDOM_KEY, &mut gradient).unwrap();
        for parameter in &info {
            let slopes = &gradient[parameter.range()];
            let norm = slopes.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
            // Along the gradient itself the slope is its norm: the direction with the least noise.
            let mut loss_at = |distance: f64| {
                let mut moved = parameters.clone();
                for (value, &slope) in moved[parameter.range()].iter_mut().zip(slopes) {
                    *value += (distance * f64::from(slope) / norm.max(1e-12)) as f32;
                }
                engine.gradient(&moved, &case.samples, RANDOM_KEY, &mut unused).unwrap().loss
            };
            let distance = 2e-3;
            let slope = (loss_at(distance) - loss_at(-distance)) / (2.0 * distance);
            assert!(
                (slope - norm).abs() < 0.02 * norm + 0.01,
                "{} {}: slope {slope}, norm of the gradient {norm}",
                case.name,
                parameter.name
            );
        }
    }
}

#[test]
fn no_parameter_is_left_out_of_the_graph() {
    for case in cases(0.0) {
        let mut engine = case.engine();
        let parameters: Vec<f32> =
            engine.initial_parameters().iter().zip(scattered(1_000_000)).map(|(p, s)| p + 0.1 * s).collect();
        let mut gradient = vec![0.0; parameters.len()];
        engine.gradient(&parameters, &case.samples, RANDOM_KEY, &mut gradient).unwrap();
        for parameter in engine.parameter_info() {
            let moved = gradient[parameter.range()].iter().any(|&g| g.abs() > 1e-6);
            assert!(moved, "{} {} has no gradient", case.name, parameter.name);
        }
    }
}

#[test]
fn without_samples_the_gradient_is_exactly_zero() {
    for case in cases(0.5) {
        let mut engine = case.engine();
        let empty = match case.samples {
            Samples::Classified { .. } => Samples::Classified { features: Vec::new(), labels: Vec::new() },
            Samples::Tokens { length, .. } => Samples::Tokens { tokens: Vec::new(), length },
        };
        let parameters = engine.initial_parameters();
        let mut gradient = vec![f32::NAN; parameters.len()];
        assert_eq!(engine.gradient(&parameters, &empty, RANDOM_KEY, &mut gradient).unwrap(), Sums::default());
        assert!(gradient.iter().all(|g| g.to_bits() == 0), "{}", case.name);
        assert_eq!(engine.evaluate(&parameters, &empty).unwrap().count, 0);
    }
}

#[test]
fn weights_count_samples_and_predicted_tokens() {
    for (case, weight) in cases(0.0).iter().zip([7.0, 5.0, 18.0]) {
        let mut engine = case.engine();
        let parameters = engine.initial_parameters();
        let mut gradient = vec![0.0; parameters.len()];
        let sums = engine.gradient(&parameters, &case.samples, RANDOM_KEY, &mut gradient).unwrap();
        let evaluation = engine.evaluate(&parameters, &case.samples).unwrap();
        assert_eq!((sums.weight, evaluation.count as f64), (weight, weight));
        assert!(
            (sums.loss - evaluation.loss).abs() < 1e-4,
            "{}: without dropout training and evaluation agree",
            case.name
        );
    }
}

#[test]
fn training_learns_and_evaluation_sees_it() {
    for case in cases(0.1) {
        let (losses, replica) = case.train(120);
        let (first, last) = (losses[0], losses[losses.len() - 1]);
        assert!(last < first / 3.0, "{}: {first} to {last}", case.name);
        let mut engine = case.engine();
        let parameters = &replica[..engine.initial_parameters().len()];
        let evaluation = engine.evaluate(parameters, &case.samples).unwrap();
        assert!(evaluation.correct * 10 >= evaluation.count * 9, "{}: {evaluation:?}", case.name);
    }
}

#[test]
fn evaluation_takes_any_number_of_samples() {
    let case = &cases(0.0)[0];
    let mut engine = case.engine();
    let parameters = engine.initial_parameters();
    let evaluation = engine.evaluate(&parameters, &support::classified(150, 10)).unwrap();
    assert_eq!(evaluation.count, 150);
}

#[test]
fn a_token_after_the_context_does_not_matter_and_one_inside_does() {
    let case = &cases(0.0)[2];
    let mut engine = case.engine();
    let parameters = engine.initial_parameters();
    let mut loss_with = |at: usize| {
        let Samples::Tokens { mut tokens, length } = case.samples.clone() else { unreachable!() };
        tokens[at] = (tokens[at] + 1) % 11;
        engine.evaluate(&parameters, &Samples::Tokens { tokens, length }).unwrap().loss
    };
    // Context 6 reads tokens 0..=6 of a row of 9.
    assert_eq!(loss_with(7).to_bits(), loss_with(8).to_bits());
    assert_ne!(loss_with(6).to_bits(), loss_with(7).to_bits());
}

#[test]
fn a_position_does_not_see_its_future() {
    let case = &cases(0.0)[2];
    let mut engine = case.engine();
    let parameters = engine.initial_parameters();
    let table = engine.parameter_info().iter().find(|p| p.name == "positions.weight").unwrap().range();
    // Only the last input is changed. If an earlier position saw it, its own gradient would move.
    let mut slopes_with = |last: u32| {
        let tokens = vec![1, 2, 3, 4, 5, last, 7, 8, 9];
        let mut gradient = vec![0.0; parameters.len()];
        engine.gradient(&parameters, &Samples::Tokens { tokens, length: 9 }, RANDOM_KEY, &mut gradient).unwrap();
        gradient[table.clone()].to_vec()
    };
    let loss_of_first_four = |last: u32| {
        let short = support::spec(json!({"kind": "gpt", "layers": 2, "heads": 2, "width": 8, "context": 4}));
        let sample = SampleShape::Tokens { length: 9, vocabulary: 11 };
        let tokens = vec![1, 2, 3, 4, 5, last, 7, 8, 9];
        let mut engine = build(&short, &sample).unwrap();
        let parameters = engine.initial_parameters();
        engine.evaluate(&parameters, &Samples::Tokens { tokens, length: 9 }).unwrap().loss
    };
    assert_eq!(loss_of_first_four(6).to_bits(), loss_of_first_four(10).to_bits());
    assert_ne!(slopes_with(6), slopes_with(10));
}

#[test]
fn wrong_input_is_refused_by_name() {
    let [mlp, _, gpt] = cases(0.0);
    let mut engine = mlp.engine();
    let parameters = engine.initial_parameters();
    let mut gradient = vec![0.0; parameters.len()];
    let mut refuse = |parameters: &[f32], samples: &Samples| {
        engine.gradient(parameters, samples, RANDOM_KEY, &mut gradient).unwrap_err()
    };
    assert!(matches!(refuse(&parameters[1..], &mlp.samples), EngineError::Length { what: "parameters", .. }));
    assert!(matches!(refuse(&parameters, &gpt.samples), EngineError::Samples(_)));
    let short = Samples::Classified { features: vec![0.0; 19], labels: vec![0, 1] };
    assert!(matches!(refuse(&parameters, &short), EngineError::Samples(_)));
    let label = Samples::Classified { features: vec![0.0; 20], labels: vec![0, 3] };
    assert_eq!(refuse(&parameters, &label).to_string(), "sample 1 holds label 3, allowed are 0 to 2");
    let nan = Samples::Classified { features: vec![f32::NAN; 10], labels: vec![0] };
    assert_eq!(refuse(&parameters, &nan), EngineError::NotFinite);

    let mut engine = gpt.engine();
    let parameters = engine.initial_parameters();
    let mut tokens = vec![0; 18];
    tokens[14] = 11;
    let refused = engine.evaluate(&parameters, &Samples::Tokens { tokens, length: 9 }).unwrap_err();
    assert_eq!(refused, EngineError::OutOfRange { what: "token", sample: 1, value: 11, max: 10 });
    let ragged = Samples::Tokens { tokens: vec![0; 10], length: 9 };
    assert!(matches!(engine.evaluate(&parameters, &ragged), Err(EngineError::Samples(_))));
    let brief = Samples::Tokens { tokens: vec![0; 6], length: 6 };
    assert!(matches!(engine.evaluate(&parameters, &brief), Err(EngineError::Samples(_))));
}

#[test]
fn models_that_do_not_fit_their_dataset_are_refused_with_the_field() {
    let image = SampleShape::Classified { shape: vec![1, 8, 8], classes: 10 };
    let flat = SampleShape::Classified { shape: vec![64], classes: 10 };
    let text = SampleShape::Tokens { length: 64, vocabulary: 96 };
    let field = |model, sample| build(&spec(model), sample).err().map(|error: BuildError| error.field());
    assert_eq!(field(json!({"kind": "cnn"}), &flat), Some("dataset"));
    assert_eq!(field(json!({"kind": "cnn"}), &text), Some("dataset"));
    assert_eq!(field(json!({"kind": "mlp"}), &text), Some("dataset"));
    assert_eq!(field(json!({"kind": "gpt"}), &image), Some("dataset"));
    assert_eq!(field(json!({"kind": "gpt", "context": 64}), &text), Some("model.context"));
    assert_eq!(field(json!({"kind": "gpt", "context": 63}), &text), None);
    assert_eq!(field(json!({"kind": "mlp", "hidden": [65536, 7600]}), &image), Some("model"));
    assert_eq!(parameter_count(&spec(json!({"kind": "mlp"})), &flat).unwrap(), 64 * 128 + 128 + 128 * 10 + 10);
    let grey = SampleShape::Classified { shape: vec![8, 8], classes: 10 };
    assert_eq!(
        parameter_count(&spec(json!({"kind": "cnn"})), &grey),
        parameter_count(&spec(json!({"kind": "cnn"})), &image)
    );
    assert!(PARAMETERS_MAX < u64::from(u32::MAX), "offsets of an exported model stay far from overflow");
}
