//! Both normalisations and their gradients against the definition: outputs in f64, gradients as slopes of Σ output · c for fixed c.

use super::*;

/// How far a value is moved to see a slope.
const STEP: f64 = 1e-5;

fn scattered(count: usize, seed: u32) -> Vec<f32> {
    let at = |index: u32| (index.wrapping_add(seed)).wrapping_mul(2_654_435_761) as f32 / 2f32.powi(31) - 1.0;
    (1..=count as u32).map(at).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

fn close(found: &[f32], exact: &[f64], what: &str) {
    assert_eq!(found.len(), exact.len(), "{what}");
    for (at, (found, exact)) in found.iter().zip(exact).enumerate() {
        assert!((f64::from(*found) - exact).abs() < 1e-4 * (1.0 + exact.abs()), "{what} {at}: {found}, not {exact}");
    }
}

/// The slope of `function` in each of the values.
fn slopes(values: &[f64], function: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let slope = |at: usize| {
        let moved = |by: f64| {
            let mut values = values.to_vec();
            values[at] += by;
            function(&values)
        };
        (moved(STEP) - moved(-STEP)) / (2.0 * STEP)
    };
    (0..values.len()).map(slope).collect()
}

/// Mean 0 and variance 1.
fn normal(values: &[f64]) -> Vec<f64> {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
    values.iter().map(|value| (value - mean) / (variance + f64::from(EPSILON)).sqrt()).collect()
}

#[test]
fn rows_and_their_gradients_agree_with_the_definition() {
    for width in [1usize, 3, 8, 13, 40] {
        let rows = 3;
        let (input, toward) = (scattered(rows * width, 1), scattered(rows * width, 2));
        let (weight, bias) = (scattered(width, 3), scattered(width, 4));
        let output = |input: &[f64], weight: &[f64], bias: &[f64]| -> Vec<f64> {
            let row = |row: &[f64]| {
                let normal = normal(row);
                normal.iter().zip(weight).zip(bias).map(|((x, w), b)| x * w + b).collect::<Vec<_>>()
            };
            input.chunks_exact(width).flat_map(row).collect()
        };
        let (mut statistics, mut found) = (Vec::new(), vec![f32::NAN; rows * width]);
        normalise_rows(&input, [&weight, &bias], &mut statistics, &mut found);
        let exact = [wide(&input), wide(&weight), wide(&bias)];
        close(&found, &output(&exact[0], &exact[1], &exact[2]), "output");

        let sum = |output: Vec<f64>| output.iter().zip(wide(&toward)).map(|(o, c)| o * c).sum::<f64>();
        // What is there already stays in the sum.
        let (mut of_input, mut of_weight, mut of_bias) = (vec![1.0; rows * width], vec![2.0; width], vec![3.0; width]);
        let parameters = [&mut of_weight[..], &mut of_bias[..]];
        rows_gradient(&mut RowsRoom::default(), [&input, &toward, &weight], &statistics, parameters, &mut of_input);
        let plus = |slopes: Vec<f64>, more: f64| slopes.into_iter().map(|slope| slope + more).collect::<Vec<_>>();
        let by_input = slopes(&exact[0], |input| sum(output(input, &exact[1], &exact[2])));
        let by_weight = slopes(&exact[1], |weight| sum(output(&exact[0], weight, &exact[2])));
        let by_bias = slopes(&exact[2], |bias| sum(output(&exact[0], &exact[1], bias)));
        if width > 1 {
            close(&of_input, &plus(by_input, 1.0), "gradient of input");
        }
        close(&of_weight, &plus(by_weight, 2.0), "gradient of weight");
        close(&of_bias, &plus(by_bias, 3.0), "gradient of bias");
    }
}

/// An image of so many rows, columns and channels, by its elements without padding.
struct Image {
    size: [usize; 2],
    channels: usize,
}

impl Image {
    fn padded(&self, values: &[f32]) -> Vec<f32> {
        let mut all = vec![0.0; self.size[0] * self.size[1] * padded(self.channels)];
        for (to, from) in all.chunks_exact_mut(padded(self.channels)).zip(values.chunks_exact(self.channels)) {
            to[..self.channels].copy_from_slice(from);
        }
        all
    }

    fn framed(&self, values: &[f32]) -> Framed {
        let mut image = Framed::new(self.size, padded(self.channels));
        image.allocate();
        let width = image.row_len();
        for (to, from) in image.rows_mut().zip(self.padded(values).chunks_exact(width)) {
            to.copy_from_slice(from);
        }
        image
    }

    /// Without padding; which has to be zeros.
    fn elements(&self, framed: &Framed) -> Vec<f32> {
        let pixels = framed.rows().flat_map(|row| row.chunks_exact(padded(self.channels)));
        let real = |pixel: &[f32]| {
            assert!(pixel[self.channels..].iter().all(|&value| value == 0.0), "channels that are none hold {pixel:?}");
            pixel[..self.channels].to_vec()
        };
        pixels.flat_map(real).collect()
    }
}

#[test]
fn groups_of_channels_and_their_gradients_agree_with_the_definition() {
    for (channels, groups) in [(4usize, 2usize), (12, 3), (16, 4), (20, 1), (9, 9)] {
        let image = Image { size: [5, 3], channels };
        let (pixels, width) = (15, channels / groups);
        let (input, beside) = (scattered(pixels * channels, 1), scattered(pixels * channels, 2));
        let toward = scattered(pixels * channels, 3);
        let (weight, bias) = (scattered(channels, 4), scattered(channels, 5));
        let output = |input: &[f64], weight: &[f64], bias: &[f64]| {
            let mut output = wide(&beside);
            for group in 0..groups {
                let places: Vec<usize> =
                    (0..pixels).flat_map(|p| (0..width).map(move |c| p * channels + group * width + c)).collect();
                let values: Vec<f64> = places.iter().map(|&place| input[place]).collect();
                for (place, value) in places.iter().zip(normal(&values)) {
                    let channel = place % channels;
                    output[*place] = (output[*place] + value * weight[channel] + bias[channel]).max(0.0);
                }
            }
            output
        };
        let exact = [wide(&input), wide(&weight), wide(&bias)];
        let mut norm = Grouped::new(pixels, channels, groups);
        norm.begin(&weight, &bias);
        let mut found = image.framed(&[]);
        norm.forward(&image.padded(&input), Some(&image.framed(&beside)), true, &mut found);
        close(&image.elements(&found), &output(&exact[0], &exact[1], &exact[2]), "output");

        let sum = |output: Vec<f64>| output.iter().zip(wide(&toward)).map(|(o, c)| o * c).sum::<f64>();
        let (mut gradient, mut of_input) = (image.padded(&toward), image.framed(&[]));
        norm.gradient(&image.padded(&input), &mut gradient, Some(&found), &mut of_input);
        let by_input = slopes(&exact[0], |input| sum(output(input, &exact[1], &exact[2])));
        close(&image.elements(&of_input), &by_input, "gradient of input");
        let (mut of_weight, mut of_bias) = (vec![0.0; channels], vec![0.0; channels]);
        norm.end(&mut of_weight, &mut of_bias);
        close(&of_weight, &slopes(&exact[1], |w| sum(output(&exact[0], w, &exact[2]))), "gradient of weight");
        close(&of_bias, &slopes(&exact[2], |b| sum(output(&exact[0], &exact[1], b))), "gradient of bias");
    }
}

#[test]
fn what_is_no_number_stays_so() {
    let image = Image { size: [1, 2], channels: 2 };
    let mut norm = Grouped::new(2, 2, 1);
    norm.begin(&[1.0, 1.0], &[0.0, 0.0]);
    let mut found = image.framed(&[]);
    norm.forward(&image.padded(&[1.0, f32::NAN, 3.0, 4.0]), None, true, &mut found);
    assert!(image.elements(&found).iter().any(|value| value.is_nan()));
}
