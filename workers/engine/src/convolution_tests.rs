//! Convolutions and their gradients against the definition, in f64, for sizes that leave tiles and vectors unfilled.

use super::*;
use proptest::prelude::*;

fn scattered(count: usize, seed: u32) -> Vec<f32> {
    let at = |index: u32| (index.wrapping_add(seed)).wrapping_mul(2_654_435_761) as f32 / 2f32.powi(31) - 1.0;
    (1..=count as u32).map(at).collect()
}

/// An image whose channels beyond the real ones are zeros.
fn framed(size: [usize; 2], channels: usize, step: usize, seed: u32) -> Framed {
    let mut image = Framed::new(size, step);
    image.allocate();
    let values = scattered(size[0] * size[1] * step, seed);
    for (row, values) in image.rows_mut().zip(values.chunks_exact(size[1] * step)) {
        row.copy_from_slice(values);
        for pixel in row.chunks_exact_mut(step) {
            pixel[channels..].fill(0.0);
        }
    }
    image
}

/// An element of an image, 0 outside of it.
fn at(image: &Framed, row: isize, column: isize, channel: usize) -> f64 {
    let inside = (0..image.height as isize).contains(&row) && (0..image.width as isize).contains(&column);
    if !inside {
        return 0.0;
    }
    let row = image.rows().nth(row as usize).unwrap_or(&[]);
    f64::from(row[column as usize * image.channels + channel])
}

fn close(found: f32, exact: f64, what: &str) {
    assert!((f64::from(found) - exact).abs() < 2e-4, "{what}: {found}, not {exact}");
}

/// Every tap of every output: calls back with output, input and weight indices.
fn taps(shape: &Shape, mut tap: impl FnMut([usize; 3], [isize; 2], usize, usize)) {
    let ([rows, columns], k, half) = (shape.output(), shape.kernel, (shape.kernel / 2) as isize);
    for (row, column, output) in itertools(rows, columns, shape.outputs) {
        for (y, x, input) in itertools(k, k, shape.inputs) {
            let from = [(row * shape.stride + y) as isize - half, (column * shape.stride + x) as isize - half];
            tap([row, column, output], from, input, ((output * shape.inputs + input) * k + y) * k + x);
        }
    }
}

fn itertools(a: usize, b: usize, c: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..a).flat_map(move |x| (0..b).flat_map(move |y| (0..c).map(move |z| (x, y, z))))
}

fn agrees(shape: Shape, seed: u32) {
    let weights = scattered(shape.outputs * shape.inputs * shape.kernel * shape.kernel, seed);
    let input = framed(shape.input, shape.inputs, shape.input_step, seed ^ 1);
    let [rows, columns] = shape.output();
    let step = shape.output_step();
    let gradient = framed([rows, columns], shape.outputs, step, seed ^ 2);
    let mut convolution = Convolution::new(shape);
    convolution.begin(&weights, true);

    let mut found = vec![f32::NAN; rows * columns * step];
    convolution.forward(&input, &mut found);
    let mut exact = vec![0.0; found.len()];
    taps(&shape, |[row, column, output], [y, x], from, weight| {
        exact[(row * columns + column) * step + output] += f64::from(weights[weight]) * at(&input, y, x, from);
    });
    found.iter().zip(&exact).for_each(|(found, exact)| close(*found, *exact, "output"));

    // Two images: the second doubles the sum.
    convolution.weight_gradient(&input, &gradient);
    convolution.weight_gradient(&input, &gradient);
    let mut found = vec![f32::NAN; weights.len()];
    convolution.end(&mut found);
    let mut exact = vec![0.0; weights.len()];
    taps(&shape, |[row, column, output], [y, x], from, weight| {
        exact[weight] += 2.0 * at(&gradient, row as isize, column as isize, output) * at(&input, y, x, from);
    });
    found.iter().zip(&exact).for_each(|(found, exact)| close(*found, *exact, "gradient of weights"));

    if shape.input_step.is_multiple_of(LANES) {
        let [height, width] = shape.input;
        let mut found = vec![1.0; height * width * shape.input_step];
        convolution.input_gradient(&gradient, &mut found, true);
        let mut exact = vec![1.0; found.len()];
        taps(&shape, |[row, column, output], [y, x], from, weight| {
            if (0..height as isize).contains(&y) && (0..width as isize).contains(&x) {
                exact[(y as usize * width + x as usize) * shape.input_step + from] +=
                    at(&gradient, row as isize, column as isize, output) * f64::from(weights[weight]);
            }
        });
        found.iter().zip(&exact).for_each(|(found, exact)| close(*found, *exact, "gradient of inputs"));
        let mut written = vec![f32::NAN; found.len()];
        if shape.kernel >= shape.stride {
            convolution.input_gradient(&gradient, &mut written, false);
            found.iter().zip(&written).for_each(|(sum, written)| close(*sum, f64::from(*written) + 1.0, "written"));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn all_three_agree_with_the_definition(
        input in [1usize..10, 1usize..16], inputs in 1usize..11, outputs in 1usize..27, wide in any::<bool>(),
        kernel in prop::sample::select(vec![1usize, 3]), stride in 1usize..3, seed in any::<u32>(),
    ) {
        let input_step = if wide { padded(inputs) } else { inputs };
        agrees(Shape { input, inputs, input_step, outputs, kernel, stride }, seed);
    }
}

#[test]
fn an_image_s_result_does_not_depend_on_images_before_it() {
    let shape = Shape { input: [7, 5], inputs: 8, input_step: 8, outputs: 9, kernel: 3, stride: 2 };
    let weights = scattered(9 * 8 * 9, 3);
    let mut convolution = Convolution::new(shape);
    convolution.begin(&weights, false);
    let [first, second] = [4, 5].map(|seed| framed(shape.input, 8, 8, seed));
    let mut results = [vec![0.0; 4 * 3 * 16], vec![0.0; 4 * 3 * 16]];
    convolution.forward(&second, &mut results[0]);
    convolution.forward(&first, &mut results[1]);
    convolution.forward(&second, &mut results[1]);
    assert_eq!(results[0], results[1]);
}
