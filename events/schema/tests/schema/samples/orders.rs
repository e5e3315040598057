//! Samples of what an agent is told to run, and to measure.

use super::{executor, order, slot};
use events_schema::orders::{ExecutorOrder, FarEnd, LinkKey, Orders};
use events_schema::{Offset, Term, TimeMs};

pub(super) fn orders() -> Orders {
    let leave_by = Some(TimeMs(9));
    let executor =
        ExecutorOrder { executor: executor(), slot: slot(1), leave_by, job: order(), leave_in_ms: None, trace: None };
    Orders { term: Term(40), position: Offset(900), executors: vec![executor] }
}

pub(super) fn orders_with_time_left() -> Orders {
    let mut orders = orders();
    orders.count_down(TimeMs(2));
    orders
}

pub(super) fn orders_with_link_keys() -> Orders {
    let mut orders = orders();
    orders.executors[0].job.link_keys = vec![LinkKey { peer: 8, key: [0x55; 32] }];
    orders
}

pub(super) fn far_end() -> FarEnd {
    FarEnd { address: "10.0.0.7:40123".to_owned(), key: [0x6b; 16] }
}
