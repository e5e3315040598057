//! Commands about tenants and their quotas.

use crate::args::TenantCommand;
use crate::failure::Failure;
use crate::output::{Output, json, line, pairs, table};
use gateway_api::{SetQuota, Tenant};
use gateway_client::{Answer, Client};
use serde_json::json;

/// `ebb tenant …`.
pub async fn tenant(client: &Client, output: Output, command: &TenantCommand) -> Result<(), Failure> {
    match command {
        TenantCommand::List => list(client, output).await,
        TenantCommand::Show { tenant } => {
            print_tenant(output, &client.tenant(tenant.as_str()).await?);
            Ok(())
        }
        TenantCommand::Set { tenant, quota } => {
            let quota = SetQuota { quota_slots: *quota };
            print_tenant(output, &client.set_quota(tenant.as_str(), &quota).await?);
            Ok(())
        }
        TenantCommand::Remove { tenant } => {
            client.remove_quota(tenant.as_str()).await?;
            match output {
                Output::Json => json(&json!({ "name": tenant.as_str(), "quota_slots": null })),
                Output::Name => line(tenant.as_str()),
                Output::Table => line(format!("{tenant} has no quota any more")),
            }
            Ok(())
        }
    }
}

async fn list(client: &Client, output: Output) -> Result<(), Failure> {
    let tenants = client.tenants(None).await?;
    match output {
        Output::Json => json(&json!({ "tenants": tenants })),
        Output::Name => tenants.iter().for_each(|tenant| line(&tenant.name)),
        Output::Table if tenants.is_empty() => {
            line("no tenant has a quota or jobs; next: ebb tenant set NAME --quota SLOTS");
        }
        Output::Table => {
            let row = |of: &Answer<Tenant>| vec![of.name.clone(), quota(of), of.jobs.to_string(), of.slots.to_string()];
            line(table(&["TENANT", "QUOTA", "JOBS", "SLOTS"], &tenants.iter().map(row).collect::<Vec<_>>()));
        }
    }
    Ok(())
}

fn print_tenant(output: Output, tenant: &Answer<Tenant>) {
    match output {
        Output::Json => json(tenant),
        Output::Name => line(&tenant.name),
        Output::Table => line(pairs(&[
            ("tenant", tenant.name.clone()),
            ("quota", quota(tenant)),
            ("jobs", tenant.jobs.to_string()),
            ("slots", tenant.slots.to_string()),
        ])),
    }
}

/// A tenant without a quota has none, which is not the same as one of 0 as long as nobody has one.
fn quota(tenant: &Tenant) -> String {
    tenant.quota_slots.map_or_else(|| "none".to_owned(), |slots| slots.to_string())
}
