//! Servers that are gone for good are forgotten, so that a cell does not fill with the names of machines it once had.

use super::Draft;
use crate::limits::{SERVER_FORGOTTEN_MS, SERVERS_FORGOTTEN_AT_ONCE_MAX};
use crate::state::Server;
use events_schema::fact::Fact;
use events_schema::{ServerId, TimeMs};

/// Forgets servers whose agent has been gone for long and of which no fleet declares or awaits a slot any more.
pub(super) fn forget(draft: &mut Draft<'_>) {
    let state = &draft.state;
    let forgotten: Vec<ServerId> = state
        .servers()
        .filter(|(id, server)| is_long_gone(server, draft.at) && state.slots_of(id).next().is_none())
        .map(|(id, _)| id.clone())
        .take(SERVERS_FORGOTTEN_AT_ONCE_MAX)
        .collect();
    for server in forgotten {
        draft.emit(Fact::ServerForgotten { server });
    }
}

fn is_long_gone(server: &Server, at: TimeMs) -> bool {
    !server.connected && server.gone_at.is_some_and(|gone| at.since_ms(gone) >= SERVER_FORGOTTEN_MS)
}
