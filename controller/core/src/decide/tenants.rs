//! Commands about tenants: how many slots each has guaranteed. Whose a job is stands in its spec, and needs no tenant of that name.

use super::{Draft, datasets::nearest};
use crate::limits::TENANTS_MAX;
use events_schema::TenantId;
use events_schema::fact::{Fact, Refusal};

/// Sets a tenant's quota, or takes it away.
pub(super) fn set_quota(draft: &mut Draft<'_>, tenant: &TenantId, quota_slots: Option<u32>) -> Result<(), Refusal> {
    match (draft.state.quota(tenant), quota_slots) {
        (None, None) => return Err(unknown(draft, tenant)),
        (None, Some(_)) if draft.state.tenants.len() as u64 >= TENANTS_MAX => {
            return Err(Refusal::Limit { what: "tenants with a quota".to_owned(), limit: TENANTS_MAX });
        }
        (known, wanted) if known == wanted => {}
        _ => draft.emit(Fact::QuotaSet { tenant: tenant.clone(), quota_slots }),
    }
    Ok(())
}

fn unknown(draft: &Draft<'_>, tenant: &TenantId) -> Refusal {
    let known = draft.state.quotas().map(|(name, _)| name.as_str());
    Refusal::Unknown { kind: "tenant".to_owned(), name: tenant.to_string(), nearest: nearest(tenant.as_str(), known) }
}
