//! What strangers can take of an agent by its conversion webhook, and whether it serves API servers meanwhile.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tributary_sandbox::ADMIN;
use tributary_tests::federation::SYSTEM;

use crate::figures::{figure, percentiles};
use crate::operator::{Bed, Operator, most_resident};
use crate::wire::now;

/// How long strangers do what they can.
const TIME: Duration = Duration::from_secs(60);
/// The largest review, and the largest that needs no room.
const SIZES: [usize; 2] = [16 << 20, 64 << 10];
/// From each of two addresses, as many as each may have.
const STRANGERS: usize = 80;
/// As long as strangers take nothing of an answer.
const UNREAD: Duration = Duration::from_secs(5);

type Stream = TlsStream<tokio::net::TcpStream>;

/// The most memory of an agent while all places at its webhook are taken by those who send the worst reviews and do not read
/// the answers, and the answers of one who asks for one object beside them.
pub(crate) async fn webhook(operator: &Operator) -> anyhow::Result<()> {
    let listen = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let bed = operator.bed_with(&format!("[webhook]\nlisten = \"{listen}\"\nurl = \"https://{listen}\"\n")).await?;
    let door = Arc::new(Door { connector: trusting(&bed).await?, listen });
    let mut honest = door.enter(Ipv4Addr::new(127, 0, 0, 4)).await.context("the webhook takes no connection")?;
    let question = posted(&review(&[object(json!([{"image": "x"}]))]));
    let mut quiet = Vec::new();
    for _ in 0..100 {
        quiet.push(asked(&mut honest, &question).await?);
    }
    figure("webhook, one object, nobody else asks", &percentiles(&mut quiet), "-", "-");
    figure("RSS with it", &format!("{:.0} MiB", bed.resident()?), "-", "-");

    let reviews: Arc<Vec<Vec<u8>>> = Arc::new(worst().iter().map(|review| posted(review)).collect());
    let sent = Arc::new(AtomicU64::new(0));
    let strangers = (0..2 * STRANGERS).map(|index| {
        let from = Ipv4Addr::new(127, 0, 0, if index < STRANGERS { 2 } else { 3 });
        tokio::spawn(stranger(door.clone(), from, reviews.clone(), index, sent.clone()))
    });
    let (strangers, began) = (join_all(strangers.collect::<Vec<_>>()), now());
    let asks = async {
        let mut beside = Vec::new();
        while began.elapsed() < TIME {
            beside.push(asked(&mut honest, &question).await?);
            sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(beside)
    };
    let (_, beside) = tokio::join!(strangers, asks);
    let (mut beside, gibibytes) = (beside?, sent.load(Ordering::Relaxed) as f64 / f64::from(1 << 30));
    figure("webhook, one object, while strangers take all", &percentiles(&mut beside), "-", "30 s");
    figure(
        &format!("most RSS, {gibibytes:.1} GiB of reviews"),
        &format!("{:.0} MiB", most_resident(&bed)?),
        "-",
        "512 MiB",
    );
    Ok(())
}

/// Where the webhook is.
struct Door {
    connector: TlsConnector,
    listen: SocketAddr,
}

impl Door {
    async fn enter(&self, from: Ipv4Addr) -> anyhow::Result<Stream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        let stream = socket.connect(self.listen).await?;
        let name = ServerName::from(IpAddr::from(Ipv4Addr::LOCALHOST));
        Ok(self.connector.connect(name, stream).await?)
    }
}

/// As API servers trust it: by what the agent has put into its Secret.
async fn trusting(bed: &Bed) -> anyhow::Result<TlsConnector> {
    let secrets: Api<Secret> = Api::namespaced(bed.cluster().client(ADMIN).await?, SYSTEM);
    let data = secrets.get("tributary-webhook").await?.data.context("the Secret of the webhook is empty")?;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&data.get("ca.crt").context("no ca.crt")?.0)?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Sends one review after the other and takes nothing of what is answered.
async fn stranger(door: Arc<Door>, from: Ipv4Addr, reviews: Arc<Vec<Vec<u8>>>, index: usize, sent: Arc<AtomicU64>) {
    let began = now();
    for review in reviews.iter().cycle().skip(index) {
        if began.elapsed() >= TIME {
            return;
        }
        let posted = async {
            let mut stream = door.enter(from).await?;
            stream.write_all(review).await?;
            stream.flush().await?;
            sent.fetch_add(review.len() as u64, Ordering::Relaxed);
            sleep(UNREAD).await;
            anyhow::Ok(())
        };
        // Whoever is thrown out comes again.
        if !matches!(timeout(UNREAD * 4, posted).await, Ok(Ok(()))) {
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Asks and reads the whole answer.
async fn asked(stream: &mut Stream, question: &[u8]) -> anyhow::Result<Duration> {
    let began = now();
    stream.write_all(question).await?;
    stream.flush().await?;
    let (mut answer, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let read = stream.read(&mut part).await?;
        anyhow::ensure!(read > 0, "the webhook ended the connection");
        answer.extend_from_slice(&part[..read]);
        let text = String::from_utf8_lossy(&answer);
        anyhow::ensure!(text.starts_with("HTTP/1.1 200") || text.len() < 12, "{text}");
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length =
            head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
        if body.len() >= length.context("the answer has no length")? {
            return Ok(began.elapsed());
        }
    }
}

fn posted(review: &str) -> Vec<u8> {
    let path = tributary::webhook::PATH;
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: webhook\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        review.len()
    );
    (head + review).into_bytes()
}

fn object(containers: Value) -> Value {
    json!({"apiVersion": "flux-framework.org/v1alpha1", "kind": "MiniCluster", "metadata": {"name": "lake"},
        "spec": {"size": 1, "containers": containers}})
}

fn review(objects: &[Value]) -> String {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request":
        {"uid": "7", "desiredAPIVersion": "flux-framework.org/v1alpha2", "objects": objects}})
    .to_string()
}

/// Reviews of both sizes: of objects that take a hundred times their text, of objects with much that has to be kept, of
/// ordinary ones, and of something else.
fn worst() -> Vec<String> {
    let dense = |count: usize| object(vec![json!({}); count].into());
    let kept = |count: usize| {
        let one =
            json!({"image": "x", "cores": 1, "diagnostics": true, "environment": {"A": "1"}, "commands": {"pre": "a"}});
        object(vec![one; count].into())
    };
    let ordinary = object(json!([{"image": "x".repeat(1 << 10), "command": "y".repeat(30 << 10)}]));
    let mut reviews = Vec::new();
    for size in SIZES {
        for (most, each) in [(100_000, &dense as &dyn Fn(usize) -> Value), (2_000, &kept)] {
            let unit = each(2).to_string().len() - each(1).to_string().len();
            let of_one = each(most.min((size - 1024) / unit));
            let count = ((size - 1024) / (of_one.to_string().len() + 1)).max(1);
            reviews.push(review(&vec![of_one; count]));
        }
        reviews.push(review(&vec![ordinary.clone(); (size - 1024) / (32 << 10)]));
        reviews.push(format!("[{}0]", "0,".repeat((size - 3) / 2)));
    }
    reviews
}
