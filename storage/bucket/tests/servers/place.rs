//! A prefix of a test's own on one of the two servers, reached through a proxy, and the same as root to see what is there.

use crate::proxy::Proxy;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_s3::types::{BucketVersioningStatus, VersioningConfiguration};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;
use storage_bucket::check::{FOLDER, check};
use storage_bucket::report::Report;
use storage_bucket::{Access, Bucket, BucketAddress};

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    Versitygw,
    Minio,
}

pub struct Place {
    pub proxy: Proxy,
    /// As root.
    pub access: Access,
    pub key: String,
    pub secret: String,
    pub address: BucketAddress,
    /// As root, without what is under test.
    pub root: Client,
}

fn get(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set; start servers and export what they print: infra/servers/s3.sh start DIR, infra/servers/minio.sh start DIR")
    })
}

static NEXT: AtomicU64 = AtomicU64::new(0);

fn fresh(what: &str) -> String {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos();
    format!("{what}-{since}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

impl Place {
    pub async fn on(server: Server) -> Self {
        let name = match server {
            Server::Versitygw => "EBB_TEST_S3",
            Server::Minio => "EBB_TEST_MINIO",
        };
        let authority = (server == Server::Minio).then(|| get("EBB_TEST_MINIO_CA"));
        let proxy = Proxy::before(&get(name), authority.as_deref().map(Path::new)).await;
        let (key, secret) = (get(&format!("{name}_ACCESS")), get(&format!("{name}_SECRET")));
        let address = format!("s3://{}/{}", get(&format!("{name}_BUCKET")), fresh("place"));
        let access = Access { endpoint: Some(proxy.url.clone()), allow_http: true, ..Access::default() };
        let root = aws_sdk_s3::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("us-east-1"))
            .endpoint_url(&proxy.url)
            .force_path_style(true)
            .credentials_provider(Credentials::new(&key, &secret, None, None, "test"))
            .build();
        Self {
            access: access.with_credentials(&key, &secret, None),
            root: Client::from_conf(root),
            address: BucketAddress::parse(&address).unwrap(),
            proxy,
            key,
            secret,
        }
    }

    pub async fn check(&self, access: &Access) -> Report {
        check(self.address.clone(), access, &fresh("run")).await
    }

    pub async fn bucket(&self) -> Bucket {
        Bucket::open(self.address.clone(), &self.access).await.unwrap()
    }

    /// A folder in another bucket, of this test's own, which keeps versions.
    pub async fn versioned_bucket(&self) -> BucketAddress {
        let address = BucketAddress::parse(&format!("s3://{}/place", fresh("versioned"))).unwrap();
        self.root.create_bucket().bucket(address.bucket()).send().await.unwrap();
        let on = VersioningConfiguration::builder().status(BucketVersioningStatus::Enabled).build();
        let put = self.root.put_bucket_versioning().bucket(address.bucket()).versioning_configuration(on);
        put.send().await.unwrap();
        address
    }

    /// Temporary credentials with this policy, as `AssumeRole` gives them.
    pub async fn session(&self, policy: &str) -> Access {
        let output = tokio::process::Command::new("curl")
            .args(["-fsS", "--max-time", "30", "--aws-sigv4", "aws:amz:us-east-1:sts", "--user"])
            .arg(format!("{}:{}", self.key, self.secret))
            .args(["-d", "Action=AssumeRole", "-d", "Version=2011-06-15", "-d", "DurationSeconds=900"])
            .args(["--data-urlencode", &format!("Policy={policy}"), &format!("{}/", self.proxy.url)])
            .output()
            .await
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let answer = String::from_utf8(output.stdout).unwrap();
        let field = |name: &str| {
            let rest = answer.split_once(&format!("<{name}>")).unwrap().1;
            rest.split_once('<').unwrap().0.to_owned()
        };
        let access = Access { credentials: None, ..self.access.clone() };
        access.with_credentials(&field("AccessKeyId"), &field("SecretAccessKey"), Some(&field("SessionToken")))
    }

    /// No object below the address, and no upload at the keys that checks use.
    pub async fn assert_empty(&self) {
        let list = self.root.list_objects_v2().bucket(self.address.bucket()).prefix(self.address.key_prefix());
        let keys: Vec<_> =
            list.send().await.unwrap().contents().iter().filter_map(|o| o.key().map(str::to_owned)).collect();
        assert_eq!(keys, Vec::<String>::new(), "objects were left");
        let uploads = self.root.list_multipart_uploads().bucket(self.address.bucket());
        let uploads = uploads.prefix(self.address.key(&format!("{FOLDER}/"))).send().await.unwrap();
        assert!(uploads.uploads().is_empty(), "uploads were left: {uploads:?}");
    }
}
