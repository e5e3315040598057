//! A service for tests that answers as it was told, one connection after the other.
#![allow(clippy::unwrap_used)]

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// An answer of this status and body.
pub fn answer(status: &str, body: &str) -> String {
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n");
    format!("{head}content-length: {}\r\n\r\n{body}", body.len())
}

/// Gives each connection the next of these answers, and then ends it or hangs; its address, and the heads of the requests. After the last
/// answer it hangs always.
pub async fn serve(answers: Vec<String>, hangs: bool) -> (String, UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (asked, heads) = unbounded_channel();
    tokio::spawn(async move {
        let mut open = Vec::new();
        for (number, answer) in (1..).zip(&answers) {
            let (mut stream, _) = listener.accept().await.unwrap();
            asked.send(request(&mut stream).await).unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
            if hangs || number == answers.len() {
                open.push(stream);
            }
        }
        asked.closed().await;
    });
    (address, heads)
}

/// Reads a request to its end; its head.
async fn request(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).map_or(0, |n| n.parse().unwrap());
    stream.read_exact(&mut vec![0; length]).await.unwrap();
    head
}
