//! A model in Pollux's format that can be computed by hand.

use loadtest_simulate::Tables;
use loadtest_simulate::pollux::PolluxModel;

/// `m` needs 5,000 steps of a second on four slots, whatever was recorded of others.
pub fn five_thousand_seconds() -> Tables {
    let placements = "placement,local_bsz,step_time,sync_time\n4,4,1,0\n4,8,1,0\n";
    let scalability = "num_nodes,num_replicas,local_bsz,step_time,sync_time\n6,6,4,1,0\n";
    let mut model = PolluxModel::read(placements, scalability).unwrap();
    let epochs = (1..=10).map(|epoch| format!("{},{},1,1\n", epoch * 500, epoch * 500)).collect::<String>();
    model.add_validation(16, &format!("progress,iteration,grad_sqr,grad_var\n{epochs}")).unwrap();
    let mut tables = Tables::default();
    tables.add_pollux("m", model);
    tables
}
