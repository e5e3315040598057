//! Models whose gradients are so large that stretches of them are summed and sent while backward computes the rest. The plain run is told of none, so
//! equal digests say that it changes nothing.

use crate::schedules::schedule;
use crate::support::{plain_digest, steps, submit};
use crate::torch::{TRAIN, document, ended, service};

/// The step at which backward fails.
const BREAKS_AT: u64 = 5;

/// With three layers each of which is more than a stretch, behind those that backward finishes last.
fn wide() -> String {
    let layers =
        "nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.Linear(512, 10))";
    let code = TRAIN.replace("nn.Linear(512, 10))", layers);
    assert_ne!(code, TRAIN);
    code
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gradient_that_is_summed_while_it_is_computed_is_the_same_whatever_happens() {
    let system = service().await;
    let document = document(&system, &wide(), 120).await;
    let expected = plain_digest(&system.client(), &system.service.ready().store_url, &document).await;
    let schedules = std::env::var("EBB_TORCH_SCHEDULES").ok().map_or(2, |text| text.parse().unwrap());
    for seed in 100..100 + schedules {
        let (digest, story) = schedule(&system, &document, &format!("parts-{seed}"), seed).await;
        assert_eq!(digest, expected, "seed {seed}: {story:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_whose_backward_fails_after_half_of_it_is_no_step() {
    let system = service().await;
    // The convolutions' gradients never come; those behind them were said before.
    let hook = format!(
        "hidden = model[:6](images.reshape(-1, 1, 8, 8))\n        if hidden.requires_grad: hidden.register_hook(self.breaks)\n        scores = model[6:](hidden)\n\
         {0:8}return F.cross_entropy(scores, labels, reduction=\"sum\"), len(labels)\n\n\
         {0:4}def breaks(self, gradient):\n{0:8}if self.step == {BREAKS_AT}: raise ArithmeticError(\"half of it\")\n\n{0:4}def unused(self):\n{0:8}",
        ""
    );
    let code = wide().replace("return F.cross_entropy(model", &format!("{hook}return F.cross_entropy(model"));
    let client = system.client();
    let id = submit(&client, &document(&system, &code, 50).await, "half").await;
    let failed = ended(&client, &id).await;
    let shown = client.job(&id).await.unwrap().as_it_came().to_string();
    assert_eq!(failed.phase, "failed", "{shown}");
    assert!(shown.contains("ArithmeticError in backward: half of it"), "{shown}");
    assert!(steps(&failed) <= BREAKS_AT, "{shown}");
}
