//! The requests that there are, with the types of their answers.

use crate::client::{Body, Client};
use crate::error::ClientError;
use gateway_api::{Dataset, DeclareFleet, DemandTaken, Fleet, Job, NameSlots, PublishDemand, Server, Slot, paths};
use reqwest::Method;

impl Client {
    /// A job.
    pub async fn job(&self, id: &str) -> Result<Job, ClientError> {
        self.get(&paths::with(paths::JOB, id)).await
    }

    /// All jobs, newest first.
    pub async fn jobs(&self) -> Result<Vec<Job>, ClientError> {
        self.pages(paths::JOBS, "jobs").await
    }

    /// Ends a job.
    pub async fn cancel(&self, id: &str) -> Result<Job, ClientError> {
        self.ask(Method::DELETE, &paths::with(paths::JOB, id), None, &[]).await
    }

    /// Has a job write a checkpoint and give its slots back.
    pub async fn suspend(&self, id: &str) -> Result<Job, ClientError> {
        self.ask(Method::POST, &paths::with(paths::JOB_SUSPEND, id), None, &[]).await
    }

    /// Lets a job run again.
    pub async fn resume(&self, id: &str) -> Result<Job, ClientError> {
        self.ask(Method::POST, &paths::with(paths::JOB_RESUME, id), None, &[]).await
    }

    /// A dataset, if it is registered.
    pub async fn dataset(&self, name: &str) -> Result<Option<Dataset>, ClientError> {
        self.find(&paths::with(paths::DATASET, name)).await
    }

    /// A fleet, if it is declared.
    pub async fn fleet(&self, name: &str) -> Result<Option<Fleet>, ClientError> {
        self.find(&paths::with(paths::FLEET, name)).await
    }

    /// Declares a fleet, or declares it anew.
    pub async fn declare_fleet(&self, name: &str, fleet: &DeclareFleet) -> Result<Fleet, ClientError> {
        self.ask(Method::PUT, &paths::with(paths::FLEET, name), Some(Body::json(fleet)), &[]).await
    }

    /// Lends slots of a fleet.
    pub async fn offer(&self, fleet: &str, slots: &NameSlots) -> Result<Fleet, ClientError> {
        self.ask(Method::POST, &paths::with(paths::FLEET_OFFERS, fleet), Some(Body::json(slots)), &[]).await
    }

    /// Takes slots of a fleet back.
    pub async fn reclaim(&self, fleet: &str, slots: &NameSlots) -> Result<Fleet, ClientError> {
        self.ask(Method::POST, &paths::with(paths::FLEET_RECLAIMS, fleet), Some(Body::json(slots)), &[]).await
    }

    /// Says how many of its slots a fleet needs.
    pub async fn demand(&self, fleet: &str, demand: &PublishDemand) -> Result<DemandTaken, ClientError> {
        self.ask(Method::POST, &paths::with(paths::FLEET_DEMAND, fleet), Some(Body::json(demand)), &[]).await
    }

    /// All slots, by server and number.
    pub async fn slots(&self) -> Result<Vec<Slot>, ClientError> {
        self.pages(paths::SLOTS, "slots").await
    }

    /// What the service is.
    pub async fn server(&self) -> Result<Server, ClientError> {
        self.get(paths::SERVER).await
    }
}
